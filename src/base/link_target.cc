// SPDX-License-Identifier: Apache-2.0
#include "src/base/link_target.h"

#include <sys/stat.h>

#include <filesystem>
#include <system_error>

namespace dlsim {

namespace fs = std::filesystem;

std::optional<std::string> LinkTarget(const std::string& path) {
  constexpr int kMaxLinks = 40;  // as Linux does
  fs::path target = path;
  std::error_code error;
  for (int i = 0; i < kMaxLinks; ++i) {
    if (!fs::is_symlink(fs::symlink_status(target, error))) return target.string();
    target = target.parent_path() / fs::read_symlink(target, error);
    if (error) break;
  }
  return std::nullopt;
}

// Whoever may not change them, on some file systems, keeps those of a new file.
void KeepMode(const std::string& target, int descriptor) {
  struct stat status = {};
  if (stat(target.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  [[maybe_unused]] const int changed = fchmod(descriptor, status.st_mode & 0777);
}

}  // namespace dlsim
