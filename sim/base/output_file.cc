// SPDX-License-Identifier: Apache-2.0
#include "sim/base/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include "dlsim/error.h"
#include "sim/base/temporary_files.h"
#include "src/base/link_target.h"

namespace dlsim::sim {
namespace {

bool IsSpecialFile(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
}

}  // namespace

bool SameOutput(const std::string& a, const std::string& b) {
  if (a == "-" || b == "-") return a == b;
  std::error_code failed;
  const std::filesystem::path path_a =
      std::filesystem::weakly_canonical(std::filesystem::absolute(a), failed);
  if (failed) return a == b;
  const std::filesystem::path path_b =
      std::filesystem::weakly_canonical(std::filesystem::absolute(b), failed);
  return failed ? a == b : path_a == path_b;
}

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
  const std::optional<std::string> target = LinkTarget(path);
  if (!target) {
    errno = ELOOP;
    Fail("cannot be written");
  }
  target_ = *target;
  CreateTemporary();
}

// Not mkstemp, which would make the result readable by its owner alone.
void OutputFile::CreateTemporary() {
  constexpr int kMaxAttempts = 1000;
  constexpr int kCreate = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  for (int i = 0; i < kMaxAttempts; ++i) {
    const std::string name = target_ + ".tmp." + std::to_string(getpid()) + "." + std::to_string(i);
    const int descriptor = open(name.c_str(), kCreate, 0666);
    if (descriptor < 0 && errno == EEXIST) continue;
    if (descriptor < 0) break;
    file_ = fdopen(descriptor, "wb");
    if (file_ == nullptr) break;  // for want of memory
    temporary_ = name;
    RememberTemporary(temporary_);
    return;
  }
  Fail("cannot be written");
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
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) Fail("cannot be renamed into place");
  ForgetTemporary(temporary_);
  temporary_.clear();
}

void WriteOutput(const std::string& path, std::string_view text) {
  OutputFile out(path);
  out.Write(text);
  out.Commit();
}

void ResultPaths::RequireDistinct() const {
  if (!json || !csv || !SameOutput(*json, *csv)) return;
  throw UsageError("--csv", "taken by --json", "another file", Quoted(*csv));
}

ResultFiles::ResultFiles(const ResultPaths& paths) {
  if (paths.json) json.emplace(*paths.json);
  if (paths.csv) csv.emplace(*paths.csv);
}

void ResultFiles::Commit() {
  if (json) json->Commit();
  if (csv) csv->Commit();
}

void OutputFile::Fail(const char* what) const {
  const std::string place = path_ == "-" ? "standard output" : Printable(path_);
  throw InputError(place, std::string(what) + " (" + std::strerror(errno) + ")");
}

}  // namespace dlsim::sim
