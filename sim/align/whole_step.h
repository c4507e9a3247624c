// SPDX-License-Identifier: Apache-2.0
// One step file of what the files of several shards hold.
#pragma once

#include <string>
#include <vector>

#include "dlsim/trace.h"

namespace dlsim::sim {

// Writes the tensors of the same step, or micro-step, of all shards as a safetensors file; metadata
// is that of the first shard which has it. Throws InputError, and leaves no file then.
void WriteWholeStep(const std::vector<const Recording*>& shards, const std::string& path);

}  // namespace dlsim::sim
