// SPDX-License-Identifier: Apache-2.0
// Makes one trace or profile of what the processes of sharded training recorded.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace dlsim::sim {

// What was joined.
struct JoinedShards {
  size_t shards = 0;
  bool is_profile = false;
};

// Returns what the processes wrote that were given `path`, in the order of their numbers: the
// directories PATH/shard-00000-of-00004, or the profiles NAME.shard-00000-of-00004.dlprof of
// NAME.dlprof. Throws InputError if there are none, or one is missing.
std::vector<std::string> FindShards(const std::string& path);

// Joins them to `output`: a directory that holds no trace yet, or a profile. Throws Error, and
// leaves no trace then.
JoinedShards JoinShards(const std::string& path, const std::string& output);

}  // namespace dlsim::sim
