// SPDX-License-Identifier: Apache-2.0
// The temporary files of outputs that are not complete yet, known where a signal can remove them.
#pragma once

#include <string>

namespace dlsim::sim {

// Remembers `path` until it is forgotten. Beyond the few that a command writes at once, paths are
// not remembered.
void RememberTemporary(const std::string& path);
void ForgetTemporary(const std::string& path);

// Removes the remembered files. Async-signal-safe.
void RemoveTemporaries();

}  // namespace dlsim::sim
