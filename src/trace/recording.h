// SPDX-License-Identifier: Apache-2.0
// Turns one planned file, or the shards of one step, into a Recording: opens it and validates it.
#pragma once

#include <map>
#include <set>
#include <string>

#include "dlsim/trace.h"
#include "src/trace/dumps.h"
#include "src/trace/layout.h"
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

// What files that are loaded one after another have in common.
struct OpenFiles {
  DumpCache dumps;
  LatestHeader header;
};

// Throws InputError.
Recording LoadRecording(const PlannedFile& file, const RoleMap* roles, const TraceOptions& options,
                        OpenFiles& open);

}  // namespace dlsim
