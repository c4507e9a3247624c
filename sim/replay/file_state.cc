// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/file_state.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>

#include "dlsim/error.h"

namespace dlsim::sim {
namespace {

constexpr int64_t kNanoseconds = 1'000'000'000;

}  // namespace

FileState StateOf(std::span<const std::string> paths) {
  FileState state;
  for (const std::string& path : paths) {
    struct stat status = {};
    if (stat(path.c_str(), &status) != 0) {
      throw InputError(Printable(path),
                       std::string("cannot be read (") + std::strerror(errno) + ")");
    }
    state.files.push_back(
        {std::filesystem::path(path).filename().string(), static_cast<uint64_t>(status.st_size)});
    state.changed_at.push_back(int64_t{status.st_mtim.tv_sec} * kNanoseconds +
                               status.st_mtim.tv_nsec);
  }
  return state;
}

FileState StateIfThere(std::span<const std::string> paths) {
  try {
    return StateOf(paths);
  } catch (const Error&) {
    return {};
  }
}

void RequireUnchanged(std::span<const std::string> paths, const FileState& before) {
  const FileState after = StateOf(paths);
  for (size_t k = 0; k < paths.size(); ++k) {
    const bool is_same = k < before.files.size() && after.files[k].bytes == before.files[k].bytes &&
                         after.changed_at[k] == before.changed_at[k];
    if (!is_same) throw InputError(Printable(paths[k]), "changed while it was read");
  }
}

}  // namespace dlsim::sim
