// SPDX-License-Identifier: Apache-2.0
// Finds the steps of a trace from names, sizes and trace.json, without reading tensors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/trace.h"

namespace dlsim {

// What a trace may be, for errors.
inline constexpr std::string_view kReadable =
    "a directory of step-<digits>.safetensors files, .safetensors, *.safetensors.index.json, .npy, "
    ".npz or act_dumps*.npz";

enum class Container { kSafetensors, kShards, kNpy, kNpyDirectory, kNpz, kDump };

// Roles that a trace.json sets, by tensor name.
using RoleMap = std::map<std::string, Role>;

// What one Recording will be read from.
struct PlannedFile {
  Container container = Container::kSafetensors;
  std::string path;
  int64_t micro = -1;
  int64_t rank = -1;
  uint64_t slice = 0;                    // of a dump: the index along the first axis of every array
  std::vector<std::string> arrays = {};  // of a directory of .npy: paths of its files
};

struct PlannedStep {
  std::optional<int64_t> step;           // absent if nothing records it: one after the step before
  std::vector<PlannedFile> files;        // by micro-step, then by rank
  size_t ranks = 1;                      // files per micro-step
  std::shared_ptr<const RoleMap> roles;  // null if no trace.json sets any
};

struct TracePlan {
  std::vector<PlannedStep> steps;
  uint64_t file_bytes = 0;
  std::map<std::string, std::string> description;
  std::vector<std::string> notes;
  uint64_t left_out = 0;  // arrays of dumps
};

// The name of a file of a step directory: step-<step>[.rank-<rank>][.micro-<micro>].safetensors.
struct StepName {
  int64_t step = 0;
  int64_t rank = -1;
  int64_t micro = -1;
};

// Returns nothing for a name that does not follow the grammar.
std::optional<StepName> ParseStepName(std::string_view name);

// True for what must follow the grammar: step-*.safetensors.
bool LooksLikeStepName(std::string_view name);

// Adds the steps of `directory`, whose step files are `names`; reads its trace.json if
// `has_trace_json`.
void PlanStepDirectory(const std::string& directory, const std::vector<std::string>& names,
                       bool has_trace_json, TracePlan& plan);

// Returns the steps of all `paths`, numbered and ascending. Throws InputError.
TracePlan PlanTrace(std::span<const std::string> paths);

}  // namespace dlsim
