// SPDX-License-Identifier: Apache-2.0
// Shards of one step that a shell's glob gives as files of their own.
#pragma once

#include <string>
#include <vector>

namespace dlsim {

// Replaces neighboring files NAME-00001-of-00002.safetensors of one folder by their index,
// NAME.safetensors.index.json, with a note; a single one stays. Throws InputError if there is no
// index: the files would be taken for steps.
std::vector<std::string> GatherShards(const std::vector<std::string>& paths,
                                      std::vector<std::string>& notes);

}  // namespace dlsim
