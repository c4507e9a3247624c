// SPDX-License-Identifier: Apache-2.0
#include "src/trace/layout.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "dlsim/error.h"
#include "src/trace/dumps.h"
#include "src/trace/metadata.h"
#include "src/trace/npz.h"
#include "src/trace/number_words.h"
#include "src/trace/numbered_files.h"
#include "src/trace/read_only_file.h"
#include "src/trace/safetensors.h"
#include "src/trace/shard_files.h"
#include "src/trace/shards.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
// Containers that are seen in practice and not read.
constexpr std::array<std::string_view, 8> kConvertible = {".pt",  ".pth", ".bin",  ".ckpt",
                                                          ".pkl", ".h5",  ".hdf5", ".parquet"};

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
  planned.files.push_back(
      {.container = container, .path = path, .micro = -1, .rank = -1, .slice = 0});
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
  const std::optional<StepName> name = ParseStepName(fs::path(path).filename().string());
  if (name) RefuseSecondPart(path, *name, plan);
  AddFile(Container::kSafetensors, path, name ? name->step : StepInside(path), plan);
  if (!name) return;
  plan.steps.back().files.back().micro = name->micro;
  plan.steps.back().files.back().rank = name->rank;
}

void AddShards(const std::string& index_path, TracePlan& plan) {
  const ShardMap shards = ReadShardIndex(index_path);
  const std::string first = ShardPath(index_path, shards.begin()->first);
  AddFile(Container::kShards, index_path, StepInside(first), plan);
  for (const auto& [file, names] : shards) {
    plan.file_bytes += ReadOnlyFile::Open(ShardPath(index_path, file))->size();
  }
}

void AddDump(const std::string& path, TracePlan& plan) {
  const DumpSummary summary = SummarizeDump(NpzArchive::Open(path));
  if (summary.steps == 0) throw InputError(Printable(path), "holds no steps");
  plan.left_out += summary.left_out;
  plan.file_bytes += ReadOnlyFile::Open(path)->size();
  for (uint64_t slice = 0; slice < summary.steps; ++slice) {
    plan.steps.emplace_back().files.push_back(
        {.container = Container::kDump, .path = path, .micro = -1, .rank = -1, .slice = slice});
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
    AddDump((fs::path(directory) / name).string(), plan);
  }
}

void AddArrays(const std::string& directory, std::vector<std::string> names, TracePlan& plan) {
  for (std::string& name : names) {
    name = (fs::path(directory) / name).string();
    plan.file_bytes += ReadOnlyFile::Open(name)->size();
  }
  plan.notes.push_back(Printable(directory) + ": read as one step, whose tensors are the " +
                       std::to_string(names.size()) + " .npy files");
  plan.steps.emplace_back().files.push_back({.container = Container::kNpyDirectory,
                                             .path = directory,
                                             .micro = -1,
                                             .rank = -1,
                                             .slice = 0,
                                             .arrays = std::move(names)});
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
    AddFile(ContainerOf(file.name), (fs::path(directory) / file.name).string(), file.step, plan);
  }
}

void AddDirectory(const std::string& path, TracePlan& plan) {
  Listing listing = List(path);
  const bool has_others = !listing.indices.empty() || !listing.dumps.empty();
  if (!listing.step_files.empty() || (listing.has_trace_json && !has_others)) {
    PlanStepDirectory(path, listing.step_files, listing.has_trace_json, plan);
    if (!listing.step_files.empty()) return;
  }
  if (listing.indices.size() > 1) {
    throw InputError(Printable(path), "holds several indices of shards; name one of them", {},
                     Quoted(listing.indices[0]) + " and " + Quoted(listing.indices[1]));
  }
  if (!listing.indices.empty()) {
    AddShards((fs::path(path) / listing.indices[0]).string(), plan);
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

void AddArrayFile(Container container, const std::string& path, TracePlan& plan) {
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
  const std::string name = fs::path(path).filename().string();
  if (fs::is_directory(status)) {
    AddDirectory(path, plan);
  } else if (name.ends_with(kIndexSuffix)) {
    AddShards(path, plan);
  } else if (name.ends_with(".safetensors")) {
    AddSafetensors(path, plan);
  } else if (name.ends_with(".npy")) {
    AddArrayFile(Container::kNpy, path, plan);
  } else if (DumpNumber(name)) {
    AddDump(path, plan);
  } else if (name.ends_with(".npz")) {
    AddArrayFile(Container::kNpz, path, plan);
  } else {
    RefuseFile(path);
  }
}

// Puts neighboring dumps of one folder into the order in which they were written: a shell's
// glob gives act_dumps_10.npz before act_dumps_2.npz.
std::vector<std::string> InDumpOrder(std::span<const std::string> paths) {
  std::vector<std::string> ordered(paths.begin(), paths.end());
  const auto number = [](const std::string& path) {
    return DumpNumber(fs::path(path).filename().string());
  };
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
