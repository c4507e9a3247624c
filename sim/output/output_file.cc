// SPDX-License-Identifier: Apache-2.0
#include "sim/output/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "dlsim/error.h"
#include "sim/output/temporary_files.h"

namespace dlsim {
namespace {

bool IsSpecialFile(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
}

}  // namespace

OutputFile::OutputFile(const std::string& path) : path_(path), file_(nullptr) {
  if (path == "-") {
    file_ = stdout;
    return;
  }
  if (IsSpecialFile(path)) {  // a device or pipe such as /dev/null: nothing to rename
    file_ = std::fopen(path.c_str(), "wb");
    if (file_ == nullptr) Fail("cannot be written");
    return;
  }
  temporary_ = path + ".tmp." + std::to_string(getpid());
  const int descriptor = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  file_ = descriptor < 0 ? nullptr : fdopen(descriptor, "wb");
  if (file_ == nullptr) {
    temporary_.clear();
    Fail("cannot be written");
  }
  RememberTemporary(temporary_);
}

OutputFile::~OutputFile() {
  if (file_ != nullptr && file_ != stdout) std::fclose(file_);
  if (temporary_.empty()) return;
  unlink(temporary_.c_str());
  ForgetTemporary(temporary_);
}

void OutputFile::Write(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) Fail("cannot be written");
}

void OutputFile::Commit() {
  if (std::fflush(file_) != 0) Fail("cannot be written");
  if (file_ == stdout) return;
  std::FILE* file = file_;
  file_ = nullptr;
  if (std::fclose(file) != 0) Fail("cannot be written");
  if (temporary_.empty()) return;
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) Fail("cannot be renamed into place");
  ForgetTemporary(temporary_);
  temporary_.clear();
}

void OutputFile::Fail(const char* what) const {
  const std::string place = path_ == "-" ? "standard output" : Printable(path_);
  throw InputError(place, std::string(what) + " (" + std::strerror(errno) + ")");
}

}  // namespace dlsim
