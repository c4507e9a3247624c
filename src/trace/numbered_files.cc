// SPDX-License-Identifier: Apache-2.0
#include "src/trace/numbered_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <span>
#include <system_error>

#include "dlsim/error.h"
#include "src/trace/layout.h"
#include "src/trace/npz.h"
#include "src/trace/read_only_file.h"
#include "src/trace/safetensors.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

namespace fs = std::filesystem;

using Names = std::vector<std::string>;
using Shapes = std::map<std::string, std::vector<uint64_t>>;  // by tensor name; "" in a .npy

constexpr size_t kMostCompared = 1000;  // files: the tensors of a model differ long before
constexpr std::string_view kOfSteps = "step_12 for a step";

constexpr std::array<std::string_view, 3> kExtensions = {".safetensors", ".npz", ".npy"};
constexpr std::string_view kDigits = "0123456789";
constexpr std::string_view kSeparators = "_-.= #";

enum class NumberOf {
  kStep,     // step_12, iter-7, 3_epoch_4
  kRecord,   // grads_0007, ckpt-12, or no word at all: a step, if the files hold the same tensors
  kTensor,   // conv1, layer_3, weight2
  kPart,     // rank_0, microstep-1, seed_3: parts of one step, or several runs
  kUnknown,  // any other word
};
using enum NumberOf;

// Words by what a number after them counts. One of four letters or more may end a longer word:
// gradstep3, batchnorm1.
struct WordRow {
  NumberOf of;
  bool anywhere;  // true if it counts in the middle of a name, too, where layers have many names
  std::string_view words;
};

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

// A file's name around a number in it.
struct NumberedName {
  std::string_view before, after;  // after it, but for the extension
  std::string_view extension;
  int64_t number = 0;
  NumberOf of = kUnknown;
  bool anywhere = false;  // as in WordRow

  bool IsLike(const NumberedName& other) const {
    return before == other.before && after == other.after && extension == other.extension;
  }
};

// Returns the numbers in the name of a container, the last one first.
std::vector<NumberedName> NumbersIn(std::string_view name) {
  const std::string_view extension = ContainerExtension(name);
  std::vector<NumberedName> numbers;
  if (extension.empty()) return numbers;
  const std::string_view stem = name.substr(0, name.size() - extension.size());
  for (size_t end = stem.find_last_of(kDigits) + 1; end > 0;) {
    const size_t begin = stem.find_last_not_of(kDigits, end - 1) + 1;
    const std::string_view before = stem.substr(0, begin);
    const WordRow row = RowOf(before);
    if (const std::optional<int64_t> number = ParseDigits(stem.substr(begin, end - begin))) {
      numbers.push_back({before, stem.substr(end), extension, *number, row.of, row.anywhere});
    }
    end = before.find_last_of(kDigits) + 1;
  }
  return numbers;
}

// Returns the last number that follows a word for a step, else the number at the end of the name.
std::optional<NumberedName> ParseNumberedName(std::string_view name) {
  std::optional<NumberedName> at_end;
  for (const NumberedName& parts : NumbersIn(name)) {
    if (parts.of == kStep && (parts.after.empty() || parts.anywhere)) return parts;
    if (parts.after.empty()) at_end = parts;
  }
  return at_end;
}

// True if a number in the name is that of a rank, a worker or a micro-step.
bool NamesARank(std::string_view name) {
  return std::ranges::any_of(NumbersIn(name), [](const NumberedName& parts) {
    return parts.of == kPart && parts.anywhere;
  });
}

// Returns nothing for a file that cannot be read: what is wrong is said when its step is.
Shapes ShapesIn(const std::string& directory, const std::string& name) {
  const std::string path = (fs::path(directory) / name).string();
  Shapes shapes;
  try {
    if (name.ends_with(".npz")) {
      const std::shared_ptr<NpzArchive> archive = NpzArchive::Open(path);
      for (const NpzMember& member : archive->members()) {
        shapes[member.name] = ReadNpzHeader(archive, member).shape;
      }
      return shapes;
    }
    const ByteSource source = FileSource(ReadOnlyFile::Open(path));
    if (name.ends_with(".npy")) return {{"", ReadNpyHeader(source).shape}};
    const SafetensorsHeader header = ReadSafetensorsHeader(source);
    for (const SafetensorsTensor& tensor : *header.tensors) {
      shapes[tensor.info->name] = tensor.info->shape;
    }
  } catch (const Error&) {
  }
  return shapes;
}

// Steps of one training have tensors in common. True also where there is nothing to compare.
bool ShareATensor(const Shapes& a, const Shapes& b) {
  if (a.empty() || b.empty()) return true;
  return std::ranges::any_of(a, [&](const auto& tensor) {
    const auto other = b.find(tensor.first);
    return other != b.end() && other->second == tensor.second;
  });
}

std::string Both(const std::string& a, const std::string& b) {
  return Quoted(a) + " and " + Quoted(b);
}

// True for a directory that holds files of steps: of a trace or a profile.
bool LooksLikeTrace(const fs::path& path) {
  std::error_code failed;
  fs::directory_iterator entry(path, failed);
  for (const fs::directory_iterator end; !failed && entry != end; entry.increment(failed)) {
    if (!ContainerExtension(entry->path().filename().string()).empty()) return true;
  }
  return false;
}

// " (runs/a and runs/b look like traces)" for what the directory holds; else empty.
std::string TracesWithin(const std::string& directory) {
  Names found;
  std::error_code failed;
  fs::directory_iterator entry(directory, failed);
  for (const fs::directory_iterator end; !failed && entry != end; entry.increment(failed)) {
    if (LooksLikeTrace(entry->path())) found.push_back(Printable(entry->path().string()));
  }
  std::ranges::sort(found);
  if (found.empty()) return "";
  if (found.size() == 1) return " (" + found[0] + " looks like a trace or profile)";
  const std::string second =
      found.size() == 2 ? " and " + found[1]
                        : ", " + found[1] + " and " + std::to_string(found.size() - 2) + " more";
  return " (" + found[0] + second + " look like traces or profiles)";
}

[[noreturn]] void RefuseUnnumbered(const std::string& directory, const Names& names) {
  if (names.empty()) {
    throw InputError(Printable(directory), "no step found" + TracesWithin(directory), kReadable);
  }
  throw InputError(Printable(directory), "no step number in the names of its files",
                   "such as step-12.safetensors, or the files themselves, one per step",
                   Quoted(names.front()));
}

[[noreturn]] void RefuseParts(const std::string& directory, std::span<const std::string> names) {
  throw InputError(Printable(directory),
                   "the numbers in its names do not count steps, but parts of a step, or runs",
                   "one file per step, such as step-12.npz", Both(names[0], names[1]));
}

// The names, which have different words in them, tell of tensors; or of several steps at once.
void CheckOneStep(const std::string& directory, const Names& names) {
  const std::string* of_step = nullptr;
  for (const std::string& name : names) {
    if (NamesARank(name) && names.size() > 1) RefuseParts(directory, names);
    const std::optional<NumberedName> parts = ParseNumberedName(name);
    if (!parts || parts->of != kStep) continue;
    if (of_step != nullptr && ParseNumberedName(*of_step)->number != parts->number) {
      throw InputError(Printable(directory), "holds tensors of several steps, a file for each",
                       "one file per step, such as step-12.npz", Both(*of_step, name));
    }
    of_step = &name;
  }
}

// Returns whether .npy files that differ in a number alone are the tensors of one step.
bool AreTensors(const std::string& directory, const Names& names, NumberOf of) {
  if (of == kTensor) return true;
  if (of == kStep || names.size() == 1) return false;
  const Shapes first = ShapesIn(directory, names[0]);
  for (size_t i = 1; i < std::min(names.size(), kMostCompared); ++i) {
    if (!ShareATensor(first, ShapesIn(directory, names[i]))) return true;
  }
  if (of == kRecord) return false;
  throw InputError(Printable(directory),
                   "the numbers in its names may count steps, or the tensors of one step",
                   std::string(kOfSteps) +
                       " and layer_12 for a tensor, or the files themselves, "
                       "one per step",
                   Both(names[0], names[1]));
}

// Returns those of `names` that have a number, all alike but for it.
Names AlikeButForNumber(const std::string& directory, const Names& names) {
  Names alike;
  for (const std::string& name : names) {
    const std::optional<NumberedName> parts = ParseNumberedName(name);
    if (!parts) continue;
    if (parts->before.ends_with("-of-")) {
      throw InputError(Printable(directory), "holds shards without their index",
                       "*.safetensors.index.json next to them", Quoted(name));
    }
    if (!alike.empty() && !ParseNumberedName(alike.front())->IsLike(*parts)) {
      throw InputError(Printable(directory), "holds several kinds of numbered files",
                       "names that differ only in the step number", Both(alike.front(), name));
    }
    alike.push_back(name);
  }
  if (alike.empty()) RefuseUnnumbered(directory, names);
  return alike;
}

// Refuses files whose numbers are not those of steps; returns a note where that is not certain.
std::string CheckSteps(const std::string& directory, const Names& names, NumberOf of) {
  if (of == kStep) return {};
  const bool are_arrays = names[0].ends_with(".npy");
  if (of == kTensor) RefuseParts(directory, names);
  if (!are_arrays && !ShareATensor(ShapesIn(directory, names[0]), ShapesIn(directory, names[1]))) {
    throw InputError(
        Printable(directory), "its files have no tensor in common: steps, or parts of one step?",
        std::string(kOfSteps) + ", or one file with all tensors", Both(names[0], names[1]));
  }
  if (of == kRecord && !are_arrays) return {};
  return Printable(directory) + ": read as " + std::to_string(names.size()) +
         " steps by the numbers in the names; if they count parts of one step, put these into one "
         "file";
}

std::vector<NumberedFile> InOrder(const std::string& directory, const Names& names) {
  std::vector<NumberedFile> files;
  for (const std::string& name : names) files.push_back({ParseNumberedName(name)->number, name});
  std::ranges::sort(files, {}, &NumberedFile::step);
  const auto twice = std::ranges::adjacent_find(files, {}, &NumberedFile::step);
  if (twice != files.end()) {
    throw InputError(Printable(directory), "a step twice", "each number once",
                     Both(twice->name, std::next(twice)->name));
  }
  return files;
}

// True for .npy files only, whose names do not differ in a number alone.
bool AreNamedArrays(const Names& names) {
  if (names.empty()) return false;
  const std::optional<NumberedName> first = ParseNumberedName(names.front());
  bool alike = first.has_value();
  for (const std::string& name : names) {
    if (!name.ends_with(".npy")) return false;
    const std::optional<NumberedName> parts = ParseNumberedName(name);
    alike = alike && parts && parts->IsLike(*first);
  }
  return !alike;
}

}  // namespace

std::string_view ContainerExtension(std::string_view name) {
  for (const std::string_view extension : kExtensions) {
    if (name.ends_with(extension)) return extension;
  }
  return {};
}

NumberedDirectory ReadNumbers(const std::string& directory, const Names& names) {
  if (AreNamedArrays(names)) {
    CheckOneStep(directory, names);
    return {.is_one_step = true};
  }
  const Names numbered = AlikeButForNumber(directory, names);
  const NumberOf of = ParseNumberedName(numbered.front())->of;
  const bool are_arrays = numbered.size() == names.size() && names[0].ends_with(".npy");
  if (numbered.size() == 1) {
    const bool has_step = of == kStep || of == kRecord;
    if (!has_step) return {.files = {{std::nullopt, numbered[0]}}};
  } else if (of == kPart) {
    RefuseParts(directory, numbered);
  } else if (are_arrays && AreTensors(directory, numbered, of)) {
    return {.is_one_step = true};
  }
  NumberedDirectory result;
  if (numbered.size() > 1) result.note = CheckSteps(directory, numbered, of);
  result.files = InOrder(directory, numbered);
  return result;
}

void RefuseSameStep(const std::string& before, const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  if (fs::path(before).parent_path() != folder) return;
  const std::string names[] = {fs::path(before).filename().string(),
                               fs::path(path).filename().string()};
  const std::optional<NumberedName> first = ParseNumberedName(names[0]);
  const std::optional<NumberedName> second = ParseNumberedName(names[1]);
  const bool alike = first && second && first->IsLike(*second);
  const NumberOf of = alike ? second->of : kUnknown;
  if (of == kStep) return;
  const bool are_arrays = names[0].ends_with(".npy") && names[1].ends_with(".npy");
  const auto shapes = [&](size_t i) { return ShapesIn(folder.string(), names[i]); };
  const bool are_tensors = are_arrays && (of == kTensor || !ShareATensor(shapes(0), shapes(1)));
  if (!are_tensors && of != kPart) return;
  throw InputError(Printable(path),
                   are_tensors ? "tensors given as single files" : "parts given as single files",
                   are_tensors ? "their directory, which is one step" : "one file per step",
                   Both(names[0], names[1]));
}

}  // namespace dlsim
