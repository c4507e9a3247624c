// SPDX-License-Identifier: Apache-2.0
// Where a result is written that replaces a file through symbolic links.
#pragma once

#include <optional>
#include <string>

namespace dlsim {

// Follows symbolic links at the end of `path`, also to a file that does not exist yet. Returns
// nothing if they do not end.
std::optional<std::string> LinkTarget(const std::string& path);

// Gives an open file the permissions of the file `target` that it is to replace, if there is one.
void KeepMode(const std::string& target, int descriptor);

}  // namespace dlsim
