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

// Roles that a trace.json sets, by tensor name.
using RoleMap = std::map<std::string, Role>;

// What one Recording will be read from.
struct PlannedFile {
  std::string path;
  int64_t micro = -1;
  int64_t rank = -1;
  uint64_t slice = 0;  // of a dump: the index along the first axis of every array
  // Of shards the index and they, of a directory of .npy its files; of others the path alone.
  std::vector<std::string> files = {};
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

// True for the name of a file of a step directory, which must follow the grammar
// step-<step>[.rank-<rank>][.micro-<micro>].safetensors.
bool LooksLikeStepName(std::string_view name);

// Returns the extension of a container that a step may be in: .safetensors, .npz, .npy; or nothing.
std::string_view ContainerExtension(std::string_view name);

// True for the index of shards, and for a dump, which holds several steps.
bool IsIndex(std::string_view path);
bool IsDump(const std::string& path);

// Returns the steps of all `paths`, numbered and ascending. Throws InputError.
TracePlan PlanTrace(std::span<const std::string> paths);

}  // namespace dlsim
