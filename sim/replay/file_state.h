// SPDX-License-Identifier: Apache-2.0
// Whether files stay as they are while they are read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dlsim/step_tables.h"

namespace dlsim::sim {

// Files as they are on disk at one time.
struct FileState {
  std::vector<RecordedFile> files;
  std::vector<int64_t> changed_at;  // of each, in nanoseconds since 1970

  friend bool operator==(const FileState&, const FileState&) = default;
};

// Throws InputError naming a file that is gone.
FileState StateOf(std::span<const std::string> paths);

// The same before files are opened: one that is gone is reported where it is opened.
FileState StateIfThere(std::span<const std::string> paths);

// Throws InputError naming a file of which size or time is not as before.
void RequireUnchanged(std::span<const std::string> paths, const FileState& before);

}  // namespace dlsim::sim
