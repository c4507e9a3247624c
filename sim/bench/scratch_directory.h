// SPDX-License-Identifier: Apache-2.0
// A directory for large temporary files, which goes however this process ends.
#pragma once

#include <sys/types.h>

#include <string>

namespace dlsim::sim {

class ScratchDirectory {
 public:
  // Makes one in `parent`, or, if that is empty, where the system has temporary files. Throws
  // InputError.
  explicit ScratchDirectory(const std::string& parent);
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  void End() const;

  std::string path_;
  int alive_ = -1;      // a pipe that is open for as long as this process lives
  pid_t remover_ = -1;  // the process that makes the directory, and removes it after this one
};

}  // namespace dlsim::sim
