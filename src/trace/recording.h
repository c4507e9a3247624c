// SPDX-License-Identifier: Apache-2.0
// Turns one planned file, or the shards of one step, into a Recording: opens it and validates it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dlsim/trace.h"
#include "src/trace/layout.h"
#include "src/trace/npz.h"
#include "src/trace/safetensors.h"

namespace dlsim {

// True if the user's glob selects the tensor.
bool IsSelected(const std::string& name, const TraceOptions& options);

// The names of the tensors of each shard, by file name.
using ShardMap = std::map<std::string, std::set<std::string>>;

// Reads a *.safetensors.index.json, which maps every tensor to the file that holds it. Every file
// name in it is a plain name. Throws InputError.
ShardMap ReadShardIndex(const std::string& index_path);

// Returns the path of the shard `file`, next to the index.
std::string ShardPath(const std::string& index_path, const std::string& file);

// Returns the tensors of all shards as one recording. Throws InputError.
Recording LoadShards(const std::string& index_path, const TraceOptions& options);

// A file act_dumps*.npz of the Cerebras Model Zoo's DumpContext: several steps, stacked along the
// first axis of every array.
struct Dump {
  uint64_t file_bytes = 0, steps = 0;
  uint64_t left_out = 0;  // arrays of the forward pass that are not floating-point numbers
  // The first step of each array that is selected. All steps share what it is read from, so that
  // reading them in order decompresses every array once.
  std::vector<TraceTensor> arrays = {};
};

// Reads the directory and the headers of a dump; without options no arrays. Throws InputError.
Dump ReadDump(const std::shared_ptr<NpzArchive>& archive, const TraceOptions* options = nullptr);

// What files that are loaded one after another have in common.
struct OpenFiles {
  std::mutex mutex;  // of the last dump, which stays open, as steps are loaded in order
  std::string dump_path;
  std::optional<Dump> dump;
  LatestHeader header;
};

// Throws InputError.
Recording LoadRecording(const PlannedFile& file, const RoleMap* roles, const TraceOptions& options,
                        OpenFiles& open);

}  // namespace dlsim
