// SPDX-License-Identifier: Apache-2.0
// Which forward tensors a recording says that autocast keeps in float32.
#pragma once

#include <map>
#include <set>
#include <string>

namespace dlsim::sim {

// Returns the names that the metadata of a recording list, one a line, under kAutocastFloat32Key.
std::set<std::string> Float32Tensors(const std::map<std::string, std::string>& metadata);

}  // namespace dlsim::sim
