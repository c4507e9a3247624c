// SPDX-License-Identifier: Apache-2.0
#include "src/trace/layout.h"

#include <algorithm>
#include <array>
#include <compare>
#include <filesystem>
#include <regex>
#include <set>
#include <utility>

#include "dlsim/error.h"
#include "src/trace/dumps.h"
#include "src/trace/metadata.h"
#include "src/trace/npz.h"
#include "src/trace/numbered_files.h"
#include "src/trace/read_only_file.h"
#include "src/trace/recording.h"
#include "src/trace/safetensors.h"
#include "src/trace/strict_json.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
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
  fs::directory_iterator entry(directory, error);
  while (!error && entry != fs::directory_iterator()) {
    const std::string name = entry->path().filename().string();
    if (LooksLikeStepName(name)) {
      listing.step_files.push_back(name);
    } else if (name.ends_with(kIndexSuffix)) {
      listing.indices.push_back(name);
    } else if (name == "trace.json") {
      listing.has_trace_json = true;
    } else if (const std::optional<int64_t> number = DumpNumber(name)) {
      listing.dumps.emplace(*number, name);
    } else if (!ContainerExtension(name).empty()) {
      listing.others.push_back(name);
    } else if (name.starts_with("shard-") && entry->is_directory()) {
      listing.has_shards = true;
    }
    entry.increment(error);
  }
  if (error) FailToRead(Printable(directory), "cannot be read", error);
  std::sort(listing.step_files.begin(), listing.step_files.end());
  std::sort(listing.others.begin(), listing.others.end());
  return listing;
}

void AddFile(Container container, const std::string& path, std::optional<int64_t> step,
             TracePlan& plan) {
  PlannedStep& planned = plan.steps.emplace_back();
  planned.step = step;
  planned.files.push_back({.container = container, .path = path});
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
  AddFile(Container::kSafetensors, path, name ? name->step : StepInside(path), plan);
  if (!name) return;
  plan.steps.back().files.back().micro = name->micro;
  plan.steps.back().files.back().rank = name->rank;
}

void AddShards(const std::string& index_path, TracePlan& plan) {
  std::vector<std::string> files = {index_path};
  for (const auto& [file, names] : ReadShardIndex(index_path)) {
    files.push_back(ShardPath(index_path, file));
  }
  AddFile(Container::kShards, index_path, StepInside(files[1]), plan);
  for (size_t i = 1; i < files.size(); ++i) {
    plan.file_bytes += ReadOnlyFile::Open(files[i])->size();
  }
  plan.steps.back().files.back().files = std::move(files);
}

void AddDump(const std::string& path, TracePlan& plan) {
  const DumpSummary summary = SummarizeDump(NpzArchive::Open(path));
  if (summary.steps == 0) throw InputError(Printable(path), "holds no steps");
  plan.left_out += summary.left_out;
  plan.file_bytes += ReadOnlyFile::Open(path)->size();
  for (uint64_t slice = 0; slice < summary.steps; ++slice) {
    plan.steps.emplace_back().files.push_back(
        {.container = Container::kDump, .path = path, .slice = slice});
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

void AddArrays(const std::string& directory, std::vector<std::string> names, TracePlan& plan) {
  for (std::string& name : names) {
    name = Join(directory, name);
    plan.file_bytes += ReadOnlyFile::Open(name)->size();
  }
  plan.notes.push_back(Printable(directory) + ": read as one step, whose tensors are the " +
                       std::to_string(names.size()) + " .npy files");
  plan.steps.emplace_back().files.push_back(
      {.container = Container::kNpyDirectory, .path = directory, .files = std::move(names)});
}

Container ContainerOf(const std::string& name) {
  return name.ends_with(".npy")   ? Container::kNpy
         : name.ends_with(".npz") ? Container::kNpz
                                  : Container::kSafetensors;
}

void AddNumbered(const std::string& directory, std::vector<std::string> names, TracePlan& plan) {
  const NumberedDirectory numbered = ReadNumbers(directory, names);
  if (numbered.is_one_step) return AddArrays(directory, std::move(names), plan);
  if (!numbered.note.empty()) plan.notes.push_back(numbered.note);
  for (const NumberedFile& file : numbered.files) {
    AddFile(ContainerOf(file.name), Join(directory, file.name), file.step, plan);
  }
}

void AddDirectory(const std::string& path, TracePlan& plan) {
  Listing listing = List(path);
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
    AddNumbered(path, std::move(listing.others), plan);
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
  const Container container = ContainerOf(path);
  if (!plan.steps.empty() && plan.steps.back().files.back().container == container) {
    RefuseSameStep(plan.steps.back().files.back().path, path);
  }
  AddFile(container, path, std::nullopt, plan);
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
  } else if (name.ends_with(kIndexSuffix)) {
    AddShards(path, plan);
  } else if (name.ends_with(".safetensors")) {
    AddSafetensors(path, plan);
  } else if (DumpNumber(name)) {
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
