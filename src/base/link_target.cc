// SPDX-License-Identifier: Apache-2.0
#include "src/base/link_target.h"

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

}  // namespace dlsim
