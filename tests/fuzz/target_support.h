// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets share: promises, the errors that they allow, and files in memory.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "dlsim/error.h"

namespace dlsim {

inline void Require(bool promise) {
  if (!promise) __builtin_trap();
}

// The only exception that may escape is an error of these kinds on one line.
template <typename Action>
int RunTarget(const Action& action, std::initializer_list<ErrorKind> kinds = {ErrorKind::kInput}) {
  try {
    action();
  } catch (const Error& error) {
    Require(std::ranges::find(kinds, error.kind()) != kinds.end());
    Require(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
  return 0;
}

inline std::string_view TextOf(const uint8_t* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

// A file that exists in memory alone, for readers that take a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    Require(descriptor_ >= 0);
    Require(write(descriptor_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace dlsim
