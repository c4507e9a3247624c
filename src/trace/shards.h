// SPDX-License-Identifier: Apache-2.0
// Sharded safetensors: an index file that maps every tensor to the file that holds it.
#pragma once

#include <map>
#include <set>
#include <string>

#include "dlsim/trace.h"

namespace dlsim {

// The names of the tensors of each shard, by file name.
using ShardMap = std::map<std::string, std::set<std::string>>;

// Reads a *.safetensors.index.json. Every file name in it is a plain name. Throws InputError.
ShardMap ReadShardIndex(const std::string& index_path);

// Returns the path of the shard `file`, next to the index.
std::string ShardPath(const std::string& index_path, const std::string& file);

// Returns the tensors of all shards as one recording. Throws InputError.
Recording LoadShards(const std::string& index_path, const TraceOptions& options);

}  // namespace dlsim
