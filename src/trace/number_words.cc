// SPDX-License-Identifier: Apache-2.0
#include "src/trace/number_words.h"

#include <algorithm>
#include <array>
#include <string>

#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

constexpr std::array<std::string_view, 3> kExtensions = {".safetensors", ".npz", ".npy"};
constexpr std::string_view kDigits = "0123456789";
constexpr std::string_view kSeparators = "_-.= #";

// Words by what a number after them counts. One of four letters or more may end a longer word:
// gradstep3, batchnorm1.
struct WordRow {
  NumberOf of;
  bool anywhere;  // true if it counts in the middle of a name, too, where layers have many names
  std::string_view words;
};

using enum NumberOf;
constexpr auto kWords = std::to_array<WordRow>({
    {kUnknown, false, "timestep"},  // of a sequence or of a diffusion
    {kPart, true, "micro microstep microbatch rank worker replica"},
    {kStep, true, "step steps iter iteration"},
    {kStep, false, "it batch update updates epoch"},
    {kRecord, false, "g grad grads gradient gradients trace dump dumps checkpoint ckpt snapshot"},
    {kRecord, false, "record recording state"},
    {kTensor, false, "layer layers block blocks conv convolution fc lin linear dense norm bn ln"},
    {kTensor, false, "head heads expert experts stage mlp attn attention proj embed embedding"},
    {kTensor, false, "encoder decoder weight weights bias kernel param params parameter tensor"},
    {kTensor, false, "module var variable arr h w b"},
    {kPart, false, "gpu cuda device node host proc process shard chunk part dp tp pp"},
    {kPart, false, "seed run trial fold"},
});

bool IsIn(std::string_view words, const std::string& word) {
  for (size_t begin = 0; begin < words.size();) {
    const size_t end = std::min(words.find(' ', begin), words.size());
    const std::string_view known = words.substr(begin, end - begin);
    if (known.size() < 4 ? word == known : word.ends_with(known)) return true;
    begin = end + 1;
  }
  return false;
}

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Takes the letters at the end of `text`, small, with the separators after them.
std::string TakeWord(std::string_view& text) {
  const size_t last = text.find_last_not_of(kSeparators);
  text = text.substr(0, last == text.npos ? 0 : last + 1);
  size_t begin = text.size();
  while (begin > 0 && IsLetter(text[begin - 1])) --begin;
  std::string word(text.substr(begin));
  std::ranges::transform(word, word.begin(), [](char c) { return static_cast<char>(c | 0x20); });
  text = text.substr(0, begin);
  return word;
}

// Returns the row of the word at the end of `before`.
WordRow RowOf(std::string_view before) {
  if (before.find_last_not_of(kSeparators) == before.npos) return {kRecord, false, {}};
  std::string word = TakeWord(before);
  const std::string previous = TakeWord(before);
  if (previous == "micro" || previous == "accum" || previous == "time") word = previous + word;
  if (word.starts_with("accum")) return {kPart, true, {}};
  for (const WordRow& row : kWords) {
    if (IsIn(row.words, word)) return row;
  }
  return {kUnknown, false, {}};
}

struct Run {
  size_t begin, end;
};

// Returns where the digits before `end` are that are last in `stem`.
std::optional<Run> LastDigits(std::string_view stem, size_t end) {
  const size_t last = stem.substr(0, end).find_last_of(kDigits);
  if (last == stem.npos) return std::nullopt;
  const size_t before = stem.substr(0, last).find_last_not_of(kDigits);
  return Run{before == stem.npos ? 0 : before + 1, last + 1};
}

std::string_view StemOfContainer(std::string_view name) {
  return name.substr(0, name.size() - ContainerExtension(name).size());
}

}  // namespace

std::string_view ContainerExtension(std::string_view name) {
  for (const std::string_view extension : kExtensions) {
    if (name.ends_with(extension)) return extension;
  }
  return {};
}

std::optional<NumberedName> ParseNumberedName(std::string_view name) {
  if (ContainerExtension(name).empty()) return std::nullopt;
  const std::string_view stem = StemOfContainer(name);
  std::optional<NumberedName> at_end;
  for (std::optional<Run> run = LastDigits(stem, stem.size()); run;
       run = LastDigits(stem, run->begin)) {
    NumberedName parts{.before = stem.substr(0, run->begin),
                       .after = stem.substr(run->end),
                       .extension = ContainerExtension(name)};
    const WordRow row = RowOf(parts.before);
    const std::optional<int64_t> number =
        ParseDigits(stem.substr(run->begin, run->end - run->begin));
    if (!number) continue;
    parts.number = *number;
    parts.of = row.of;
    if (row.of == kStep && (parts.after.empty() || row.anywhere)) return parts;
    if (parts.after.empty()) at_end = parts;
  }
  return at_end;
}

bool NamesARank(std::string_view name) {
  const std::string_view stem = StemOfContainer(name);
  for (std::optional<Run> run = LastDigits(stem, stem.size()); run;
       run = LastDigits(stem, run->begin)) {
    const WordRow row = RowOf(stem.substr(0, run->begin));
    if (row.of == kPart && row.anywhere) return true;
  }
  return false;
}

}  // namespace dlsim
