// SPDX-License-Identifier: Apache-2.0
#include "src/trace/layout.h"

#include <algorithm>
#include <array>
#include <compare>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "dlsim/error.h"
#include "src/base/file.h"
#include "src/trace/npz.h"
#include "src/trace/recording.h"
#include "src/trace/safetensors.h"
#include "src/trace/strict_json.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {

std::string_view ContainerExtension(std::string_view name) {
  for (const std::string_view extension : {".safetensors", ".npz", ".npy"}) {
    if (name.ends_with(extension)) return extension;
  }
  return {};
}

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
// Containers that are seen in practice and not read.
constexpr std::array<std::string_view, 8> kConvertible = {".pt",  ".pth", ".bin",  ".ckpt",
                                                          ".pkl", ".h5",  ".hdf5", ".parquet"};

std::string Join(const std::string& directory, const std::string& name) {
  return (fs::path(directory) / name).string();
}

std::string FileName(const std::string& path) { return fs::path(path).filename().string(); }

// What the name of a step file says; -1 = nothing.
struct StepName {
  int64_t step = 0, micro = -1, rank = -1;

  friend auto operator<=>(const StepName&, const StepName&) = default;
};

// Returns nothing for a name that does not follow the grammar.
std::optional<StepName> ParseStepName(const std::string& name) {
  static const std::regex kGrammar(
      R"(step-([0-9]{1,18})(\.rank-([0-9]{1,18}))?(\.micro-([0-9]{1,18}))?\.safetensors)");
  std::smatch match;
  if (!std::regex_match(name, match, kGrammar)) return std::nullopt;
  const auto number = [&](size_t group) { return ParseDigits(match.str(group)).value_or(-1); };
  return StepName{.step = number(1), .micro = number(5), .rank = number(3)};
}

// Returns the position of a dump among its siblings: 0 for act_dumps.npz, 3 for act_dumps_3.npz;
// nothing for another name.
std::optional<int64_t> DumpNumber(const std::string& name) {
  static const std::regex kGrammar(R"(act_dumps(_([1-9][0-9]{0,17}))?\.npz)");
  std::smatch match;
  if (!std::regex_match(name, match, kGrammar)) return std::nullopt;
  return ParseDigits(match.str(2)).value_or(0);
}

// Returns the index of a shard, "a/b.safetensors.index.json" of "a/b-00001-of-00002.safetensors";
// empty for other names.
std::string IndexOfShard(const std::string& path) {
  static const std::regex kGrammar(R"(-[0-9]{5}-of-[0-9]{5}\.safetensors)");
  constexpr size_t kLength = std::string_view("-00001-of-00002.safetensors").size();
  const size_t stem = path.size() - std::min(path.size(), kLength);
  const auto begin = path.begin() + static_cast<std::ptrdiff_t>(stem);
  if (!std::regex_match(begin, path.end(), kGrammar)) return "";
  return path.substr(0, stem) + std::string(kIndexSuffix);
}

// ---- A directory of step files, with its trace.json

// The names of the step files of a directory.
using StepFiles = std::map<StepName, std::string>;

struct TraceJson {
  std::optional<std::set<std::string>> files;
  std::optional<std::set<int64_t>> steps;
  RoleMap roles;
  std::map<std::string, std::string> description;  // every field that is a string
};

// Reads a list of which `read` returns nothing for a wrong entry.
template <class Read>
auto ReadList(const std::string& place, const nlohmann::json& value, const std::string& field,
              const char* list, const char* entry, const Read& read) {
  if (!value.is_array()) throw InputError(place, field + " has a wrong value", list);
  std::set<typename decltype(read(value))::value_type> entries;
  for (const nlohmann::json& one : value) {
    if (auto known = read(one)) {
      entries.insert(std::move(*known));
      continue;
    }
    throw InputError(place, field + " has a wrong entry", entry,
                     one.is_string()   ? Quoted(one.get<std::string>())
                     : one.is_number() ? Printable(one.dump())
                                       : one.type_name());
  }
  return entries;
}

std::optional<std::string> ReadStepFile(const nlohmann::json& entry) {
  if (!entry.is_string() || !ParseStepName(entry.get<std::string>())) return std::nullopt;
  return entry.get<std::string>();
}

std::optional<int64_t> ReadStepNumber(const nlohmann::json& entry) {
  constexpr uint64_t kMaxStep = 999'999'999'999'999'999;  // 18 digits, as in file names
  if (!entry.is_number_unsigned() || entry.get<uint64_t>() > kMaxStep) return std::nullopt;
  return entry.get<int64_t>();
}

RoleMap ReadRoles(const std::string& place, const nlohmann::json& value) {
  if (!value.is_object()) throw InputError(place, "'roles' has a wrong value", "an object");
  RoleMap roles;
  for (const auto& [name, role] : value.items()) {
    const std::string text = role.is_string() ? role.get<std::string>() : "";
    const std::optional<Role> known = ValueNamed<Role>(text);
    if (!known) {
      throw InputError(TensorPlace(place, name), "wrong role",
                       "'grad', 'act_grad', 'act' or 'value'",
                       role.is_string() ? Quoted(text) : role.type_name());
    }
    roles.emplace(name, *known);
  }
  return roles;
}

// Fields with other names are free.
TraceJson ReadTraceJson(const std::string& path) {
  const std::string place = Printable(path);
  const nlohmann::json json = ReadJsonFile(path);
  if (!json.is_object()) throw InputError(place, "is not a JSON object");
  TraceJson trace;
  for (const auto& [key, value] : json.items()) {
    if (key == "trace_format" && value != 1) {
      throw InputError(place, "unsupported trace_format", "1", Printable(value.dump()));
    }
    if (key == "files") {
      trace.files = ReadList(place, value, "'files'", "an array of names",
                             "a name like 'step-00000000.safetensors'", ReadStepFile);
    } else if (key == "steps") {
      trace.steps = ReadList(place, value, "'steps'", "an array of step numbers", "a step number",
                             ReadStepNumber);
    } else if (key == "roles") {
      trace.roles = ReadRoles(place, value);
    } else if (value.is_string()) {
      trace.description.emplace(key, value.get<std::string>());
    }
  }
  return trace;
}

StepFiles ParseStepNames(const std::string& directory, const std::vector<std::string>& names) {
  StepFiles files;
  for (const std::string& name : names) {
    const std::optional<StepName> parsed = ParseStepName(name);
    if (!parsed) {
      throw InputError(Printable(Join(directory, name)), "unknown kind of step file",
                       "step-<digits>[.rank-<digits>][.micro-<digits>].safetensors");
    }
    const auto [other, is_new] = files.emplace(*parsed, name);
    if (is_new) continue;
    throw InputError(Printable(Join(directory, name)), "same step as " + Quoted(other->second));
  }
  return files;
}

// Returns how many ranks recorded the trace, 1 without any in the names. A single one is read as it
// is, whatever its number. Every rank records every step and micro-step, or the sum would silently
// lack its share.
size_t CountRanks(const std::string& directory, const StepFiles& files) {
  std::map<int64_t, std::string> first_files;  // of each rank
  for (const auto& [name, file] : files) first_files.try_emplace(name.rank, file);
  if (first_files.size() <= 1) return 1;
  int64_t ranks = 0;
  for (const auto& [rank, file] : first_files) {
    const std::string place = Printable(Join(directory, file));
    if (rank < 0) throw InputError(place, "step files with and without ranks");
    if (rank == ranks++) continue;
    throw InputError(place, "missing rank",
                     "files of ranks 0 to " + std::to_string(rank) + ", but " +
                         std::to_string(ranks - 1) + " has none");
  }
  for (const auto& [name, file] : files) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      if (files.contains({name.step, name.micro, rank})) continue;
      const std::string micro =
          name.micro < 0 ? "" : ", micro-step " + std::to_string(name.micro) + ",";
      throw InputError(Printable(Join(directory, file)), "missing rank",
                       "step " + std::to_string(name.step) + micro + " of rank " +
                           std::to_string(rank) + " in the same directory");
    }
  }
  return first_files.size();
}

void CheckMicroSteps(const std::string& directory, const StepFiles& files) {
  auto first = files.begin();  // of the step
  int64_t last = -1;
  for (auto file = files.begin(); file != files.end(); ++file) {
    const auto [step, micro, rank] = file->first;
    if (step != first->first.step) {
      first = file;
      last = -1;
    }
    if (micro >= 0 && first->first.micro < 0) {
      throw InputError(Printable(Join(directory, first->second)),
                       "step has files with and without micro-steps");
    }
    if (micro > last + 1) {
      throw InputError(Printable(Join(directory, file->second)), "missing micro-step",
                       "micro-step " + std::to_string(last + 1) + " of step " +
                           std::to_string(step) + " before it");
    }
    last = micro;
  }
}

// Refuses a directory that lacks what trace.json lists, and tells about step files that it does not
// list; they are read all the same.
void CompareWithList(const std::string& directory, const TraceJson& json, const StepFiles& files,
                     TracePlan& plan) {
  std::set<std::string> missing = json.files.value_or(std::set<std::string>());
  std::set<int64_t> missing_steps = json.steps.value_or(std::set<int64_t>());
  std::vector<std::string> unlisted;
  for (const auto& [name, file] : files) {
    missing.erase(file);
    missing_steps.erase(name.step);
    const bool listed = json.files   ? json.files->contains(file)
                        : json.steps ? json.steps->contains(name.step)
                                     : true;
    if (!listed) unlisted.push_back(file);
  }
  if (!missing.empty()) {
    throw InputError(Printable(Join(directory, *missing.begin())),
                     "missing step: trace.json lists this file");
  }
  if (!missing_steps.empty()) {
    throw InputError(
        Printable(directory),
        "missing step " + std::to_string(*missing_steps.begin()) + ": trace.json lists it");
  }
  if (unlisted.empty()) return;
  plan.notes.push_back(Printable(directory) + ": trace.json does not list " +
                       std::to_string(unlisted.size()) +
                       " of the step files, which are read too: " + Quoted(unlisted.front()) +
                       (unlisted.size() > 1 ? ", ..." : ""));
}

// Adds the steps of `directory`, whose step files are `names`; reads its trace.json if
// `has_trace_json`.
void AddStepDirectory(const std::string& directory, const std::vector<std::string>& names,
                      bool has_trace_json, TracePlan& plan) {
  TraceJson json;
  if (has_trace_json) json = ReadTraceJson(Join(directory, "trace.json"));
  const StepFiles files = ParseStepNames(directory, names);
  CompareWithList(directory, json, files, plan);
  CheckMicroSteps(directory, files);
  const size_t ranks = CountRanks(directory, files);
  std::shared_ptr<const RoleMap> roles;
  if (!json.roles.empty()) roles = std::make_shared<const RoleMap>(std::move(json.roles));
  std::optional<int64_t> step;
  for (const auto& [name, file] : files) {
    if (step != name.step) plan.steps.push_back({name.step, {}, ranks, roles});
    step = name.step;
    const std::string path = Join(directory, file);
    plan.steps.back().files.push_back({.path = path, .micro = name.micro, .rank = name.rank});
    std::error_code error;
    plan.file_bytes += fs::file_size(path, error);
    if (error) FailToRead(Printable(path), "cannot be read", error);
  }
  plan.description.merge(json.description);
}

// ---- Directories that others have written: one file per step, with its number in the name, or one
// .npy per tensor of a single step. The word before a number says what it counts: conv1 is a layer,
// step_12 a step.

using Names = std::vector<std::string>;
using Shapes = std::map<std::string, std::vector<uint64_t>>;  // by tensor name; "" in a .npy

constexpr size_t kMostCompared = 1000;  // files: the tensors of a model differ long before
constexpr std::string_view kOfSteps = "step_12 for a step";

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
  const std::string path = Join(directory, name);
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

// " (runs/a and runs/b look like traces)" for what the directory holds; else empty.
std::string TracesWithin(const std::string& directory) {
  Names found;
  std::error_code ignored;
  for (const std::string& name : NamesIn(directory, ignored)) {
    const std::string path = Join(directory, name);
    const bool has_steps = std::ranges::any_of(NamesIn(path, ignored), [](const auto& within) {
      return !ContainerExtension(within).empty();
    });
    if (has_steps) found.push_back(Printable(path));
  }
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

// Refuses files whose numbers are not those of steps; notes where that is not certain.
void CheckSteps(const std::string& directory, const Names& names, NumberOf of, TracePlan& plan) {
  if (of == kStep) return;
  const bool are_arrays = names[0].ends_with(".npy");
  if (of == kTensor) RefuseParts(directory, names);
  if (!are_arrays && !ShareATensor(ShapesIn(directory, names[0]), ShapesIn(directory, names[1]))) {
    throw InputError(
        Printable(directory), "its files have no tensor in common: steps, or parts of one step?",
        std::string(kOfSteps) + ", or one file with all tensors", Both(names[0], names[1]));
  }
  if (of == kRecord && !are_arrays) return;
  plan.notes.push_back(
      Printable(directory) + ": read as " + std::to_string(names.size()) +
      " steps by the numbers in the names; if they count parts of one step, put these into one "
      "file");
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

// Refuses `path`, given after `before` as the next step, if their names or shapes say that both are
// of one step. Throws InputError, which asks for their directory.
void RefuseSameStep(const std::string& before, const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  if (fs::path(before).parent_path() != folder) return;
  if (ContainerExtension(before) != ContainerExtension(path)) return;
  const std::string names[] = {FileName(before), FileName(path)};
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

// ---- Other containers

// What a directory holds, as far as traces are concerned.
struct Listing {
  std::vector<std::string> step_files;
  std::vector<std::string> indices;
  std::map<int64_t, std::string> dumps;
  std::vector<std::string> others;  // that may hold tensors
  bool has_trace_json = false;
  bool has_shards = false;  // of a recorder in sharded training
};

Listing List(const std::string& directory) {
  Listing listing;
  std::error_code error;
  for (const std::string& name : NamesIn(directory, error)) {
    if (LooksLikeStepName(name)) {
      listing.step_files.push_back(name);
    } else if (IsIndex(name)) {
      listing.indices.push_back(name);
    } else if (name == "trace.json") {
      listing.has_trace_json = true;
    } else if (const std::optional<int64_t> number = DumpNumber(name)) {
      listing.dumps.emplace(*number, name);
    } else if (!ContainerExtension(name).empty()) {
      listing.others.push_back(name);
    } else if (name.starts_with("shard-") && fs::is_directory(Join(directory, name))) {
      listing.has_shards = true;
    }
  }
  if (error) FailToRead(Printable(directory), "cannot be read", error);
  return listing;
}

void AddFile(const std::string& path, std::optional<int64_t> step, TracePlan& plan) {
  PlannedStep& planned = plan.steps.emplace_back();
  planned.step = step;
  planned.files.push_back({.path = path});
  plan.file_bytes += ReadOnlyFile::Open(path)->size();
}

std::optional<int64_t> StepInside(const std::string& path) {
  const SafetensorsHeader header = ReadSafetensorsHeader(FileSource(ReadOnlyFile::Open(path)));
  return MetadataNumber(Printable(path), header.metadata, "step");
}

// The folder of `path` as a user would write it, quoted.
std::string FolderOf(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  return Quoted(folder.empty() ? "." : folder.string());
}

// Only a directory tells which micro-steps and ranks are all of a step.
void RefuseSecondPart(const std::string& path, const StepName& name, const TracePlan& plan) {
  if (plan.steps.empty() || plan.steps.back().step != name.step) return;
  const PlannedFile& last = plan.steps.back().files.back();
  if (fs::path(last.path).parent_path() != fs::path(path).parent_path()) return;
  const bool ranks = name.rank >= 0 && last.rank >= 0 && name.rank != last.rank;
  const bool micro_steps = name.micro >= 0 && last.micro >= 0;
  if (!ranks && !micro_steps) return;
  throw InputError(Printable(path),
                   std::string(ranks ? "ranks" : "micro-steps") + " given as single files",
                   "their directory, " + FolderOf(path));
}

void AddSafetensors(const std::string& path, TracePlan& plan) {
  const std::optional<StepName> name = ParseStepName(FileName(path));
  if (name) RefuseSecondPart(path, *name, plan);
  AddFile(path, name ? name->step : StepInside(path), plan);
  if (!name) return;
  plan.steps.back().files.back().micro = name->micro;
  plan.steps.back().files.back().rank = name->rank;
}

void AddShards(const std::string& index_path, TracePlan& plan) {
  std::vector<std::string> files = {index_path};
  for (const auto& [file, names] : ReadShardIndex(index_path)) {
    files.push_back(ShardPath(index_path, file));
  }
  AddFile(index_path, StepInside(files[1]), plan);
  for (size_t i = 1; i < files.size(); ++i) {
    plan.file_bytes += ReadOnlyFile::Open(files[i])->size();
  }
  plan.steps.back().files.back().files = std::move(files);
}

void AddDump(const std::string& path, TracePlan& plan) {
  const Dump dump = ReadDump(NpzArchive::Open(path));
  if (dump.steps == 0) throw InputError(Printable(path), "holds no steps");
  plan.left_out += dump.left_out;
  plan.file_bytes += dump.file_bytes;
  for (uint64_t slice = 0; slice < dump.steps; ++slice) {
    plan.steps.emplace_back().files.push_back({.path = path, .slice = slice});
  }
}

void AddDumps(const std::string& directory, const std::map<int64_t, std::string>& dumps,
              TracePlan& plan) {
  int64_t next = 0;
  for (const auto& [number, name] : dumps) {
    if (number != next) {
      plan.notes.push_back(Printable(directory) + ": dumps before " + Quoted(name) +
                           " are missing; steps are counted over the existing files");
    }
    next = number + 1;
    AddDump(Join(directory, name), plan);
  }
}

void AddArrays(const std::string& directory, Names names, TracePlan& plan) {
  for (std::string& name : names) {
    name = Join(directory, name);
    plan.file_bytes += ReadOnlyFile::Open(name)->size();
  }
  plan.notes.push_back(Printable(directory) + ": read as one step, whose tensors are the " +
                       std::to_string(names.size()) + " .npy files");
  plan.steps.emplace_back().files.push_back({.path = directory, .files = std::move(names)});
}

// Adds what the numbers in `names` mean, which are all containers of `directory`. Tensors are read
// by their headers, and only where the names do not decide. Throws InputError, which tells what was
// found, for what may mean several things.
void AddNumbered(const std::string& directory, const Names& names, TracePlan& plan) {
  if (AreNamedArrays(names)) {
    CheckOneStep(directory, names);
    return AddArrays(directory, names, plan);
  }
  const Names numbered = AlikeButForNumber(directory, names);
  const NumberOf of = ParseNumberedName(numbered.front())->of;
  const bool are_arrays = numbered.size() == names.size() && names[0].ends_with(".npy");
  if (numbered.size() > 1) {
    if (of == kPart) RefuseParts(directory, numbered);
    if (are_arrays && AreTensors(directory, numbered, of)) return AddArrays(directory, names, plan);
    CheckSteps(directory, numbered, of, plan);
  } else if (of != kStep && of != kRecord) {
    return AddFile(Join(directory, numbered[0]), std::nullopt, plan);
  }
  std::map<int64_t, std::string> steps;
  for (const std::string& name : numbered) {
    const auto [other, is_new] = steps.emplace(ParseNumberedName(name)->number, name);
    if (is_new) continue;
    throw InputError(Printable(directory), "a step twice", "each number once",
                     Both(other->second, name));
  }
  for (const auto& [step, name] : steps) AddFile(Join(directory, name), step, plan);
}

void AddDirectory(const std::string& path, TracePlan& plan) {
  const Listing listing = List(path);
  const bool has_others = !listing.indices.empty() || !listing.dumps.empty();
  if (!listing.step_files.empty() || (listing.has_trace_json && !has_others)) {
    AddStepDirectory(path, listing.step_files, listing.has_trace_json, plan);
    if (!listing.step_files.empty()) return;
  }
  if (listing.indices.size() > 1) {
    throw InputError(Printable(path), "holds several indices of shards; name one of them", {},
                     Quoted(listing.indices[0]) + " and " + Quoted(listing.indices[1]));
  }
  if (!listing.indices.empty()) {
    AddShards(Join(path, listing.indices[0]), plan);
  } else if (!listing.dumps.empty()) {
    AddDumps(path, listing.dumps, plan);
  } else if (listing.has_shards && listing.others.empty()) {
    throw InputError(Printable(path), "holds shards of one model, which only a replay adds up",
                     "dlsim replay or profile " + Printable(path) + ", or one of the shards");
  } else {
    AddNumbered(path, listing.others, plan);
  }
}

[[noreturn]] void RefuseFile(const std::string& path) {
  if (fs::path(path).filename() == "trace.json") {
    throw InputError(Printable(path), "describes a trace but is not one",
                     "the directory, " + FolderOf(path));
  }
  const std::string extension = fs::path(path).extension().string();
  if (std::find(kConvertible.begin(), kConvertible.end(), extension) != kConvertible.end()) {
    throw InputError(Printable(path),
                     "unsupported container " + extension +
                         "; convert it to .safetensors (dlsim import does for .pt, .pth and HDF5)");
  }
  throw InputError(Printable(path), "unknown kind of trace", kReadable);
}

void AddArrayFile(const std::string& path, TracePlan& plan) {
  if (!plan.steps.empty()) RefuseSameStep(plan.steps.back().files.back().path, path);
  AddFile(path, std::nullopt, plan);
}

void AddPath(const std::string& path, TracePlan& plan) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    throw InputError(Printable(path), "cannot be opened: " + error.message());
  }
  const std::string name = FileName(path);
  if (fs::is_directory(status)) {
    AddDirectory(path, plan);
  } else if (IsIndex(name)) {
    AddShards(path, plan);
  } else if (name.ends_with(".safetensors")) {
    AddSafetensors(path, plan);
  } else if (IsDump(path)) {
    AddDump(path, plan);
  } else if (name.ends_with(".npy") || name.ends_with(".npz")) {
    AddArrayFile(path, plan);
  } else {
    RefuseFile(path);
  }
}

// Puts neighboring dumps of one folder into the order in which they were written: a shell's
// glob gives act_dumps_10.npz before act_dumps_2.npz.
std::vector<std::string> InDumpOrder(std::span<const std::string> paths) {
  std::vector<std::string> ordered(paths.begin(), paths.end());
  const auto number = [](const std::string& path) { return DumpNumber(FileName(path)); };
  for (auto begin = ordered.begin(); begin != ordered.end();) {
    const fs::path folder = fs::path(*begin).parent_path();
    const auto end = std::find_if(begin, ordered.end(), [&](const std::string& path) {
      return !number(path) || fs::path(path).parent_path() != folder;
    });
    std::stable_sort(begin, end, [&](const std::string& a, const std::string& b) {
      return number(a) < number(b);
    });
    begin = end == begin ? begin + 1 : end;
  }
  return ordered;
}

// Replaces neighboring files NAME-00001-of-00002.safetensors of one folder by their index,
// NAME.safetensors.index.json, with a note; a single one stays. Without an index the files would be
// taken for steps.
std::vector<std::string> GatherShards(const std::vector<std::string>& paths,
                                      std::vector<std::string>& notes) {
  std::vector<std::string> gathered;
  for (auto begin = paths.begin(); begin != paths.end();) {
    const std::string index = IndexOfShard(*begin);
    const auto end = std::find_if(begin + 1, paths.end(), [&](const std::string& path) {
      return index.empty() || IndexOfShard(path) != index;
    });
    if (end - begin == 1) {
      gathered.push_back(*begin);
    } else if (fs::exists(index)) {
      gathered.push_back(index);
      notes.push_back(std::to_string(end - begin) + " files are shards of one step: read by " +
                      Printable(index));
    } else {
      throw InputError(Printable(*begin), "shards of one step without their index",
                       Printable(index));
    }
    begin = end;
  }
  return gathered;
}

void NumberSteps(TracePlan& plan) {
  int64_t last = -1;
  for (PlannedStep& planned : plan.steps) {
    if (!planned.step) planned.step = last + 1;
    if (*planned.step <= last) {
      throw InputError(Printable(planned.files[0].path), "steps do not ascend",
                       "a step after " + std::to_string(last), std::to_string(*planned.step));
    }
    last = *planned.step;
  }
}

}  // namespace

bool IsIndex(std::string_view path) { return path.ends_with(kIndexSuffix); }

bool IsDump(const std::string& path) { return DumpNumber(FileName(path)).has_value(); }

bool LooksLikeStepName(std::string_view name) {
  return name.starts_with("step-") && name.ends_with(".safetensors");
}

TracePlan PlanTrace(std::span<const std::string> paths) {
  TracePlan plan;
  for (const std::string& path : GatherShards(InDumpOrder(paths), plan.notes)) AddPath(path, plan);
  if (plan.steps.empty()) throw InputError("", "no trace given", kReadable);
  NumberSteps(plan);
  if (plan.left_out > 0) {
    plan.notes.push_back(
        "left out " + std::to_string(plan.left_out) +
        " arrays of forward activations (.fwd) that are not floating-point numbers");
  }
  return plan;
}

}  // namespace dlsim
