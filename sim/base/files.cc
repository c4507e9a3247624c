// SPDX-License-Identifier: Apache-2.0
#include "sim/base/files.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

#include "dlsim/error.h"
#include "sim/base/caller.h"
#include "src/base/file.h"

namespace dlsim::sim {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 16;

constexpr int kOfCaller = -2;  // the descriptor of what the caller takes

// The temporary files of results that are not complete yet, where a signal can remove them: fixed
// buffers, as its handler must neither allocate nor lock.
constexpr size_t kMaxTemporaries = 8;

struct Slot {
  std::atomic<bool> used = false;
  std::array<char, PATH_MAX> path = {};
};
static_assert(std::atomic<bool>::is_always_lock_free);

std::array<Slot, kMaxTemporaries> slots;
std::mutex changing;  // not taken by signal handlers

void RememberTemporary(const std::string& path) {
  const std::lock_guard lock(changing);
  for (Slot& slot : slots) {
    if (slot.used || path.size() >= slot.path.size()) continue;
    std::memcpy(slot.path.data(), path.c_str(), path.size() + 1);
    slot.used = true;
    return;
  }
}

void ForgetTemporary(const std::string& path) {
  const std::lock_guard lock(changing);
  for (Slot& slot : slots) {
    if (slot.used && path == slot.path.data()) slot.used = false;
  }
}

}  // namespace

std::optional<std::string> LinkTarget(const std::string& path) {
  constexpr int kMaxLinks = 40;  // as Linux does
  std::filesystem::path target = path;
  std::error_code error;
  for (int i = 0; i < kMaxLinks; ++i) {
    if (!std::filesystem::is_symlink(std::filesystem::symlink_status(target, error)))
      return target.string();
    target = target.parent_path() / std::filesystem::read_symlink(target, error);
    if (error) break;
  }
  return std::nullopt;
}

OutputFile::OutputFile(const std::string& path) : path_(path) {
  buffer_.reserve(kBufferBytes);
  if (CurrentCaller().Takes(path)) {
    descriptor_ = kOfCaller;
    return;
  }
  struct stat status = {};
  // A device or pipe such as /dev/null: nothing to rename.
  if (stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    descriptor_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor_ < 0) Fail("cannot be written");
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
    std::string name = target_ + ".tmp." + std::to_string(getpid()) + "." + std::to_string(i);
    // First remembered, then created: a signal in between must find it.
    RememberTemporary(name);
    const int descriptor = open(name.c_str(), kCreate, 0666);
    if (descriptor < 0) {
      const int failure = errno;
      ForgetTemporary(name);
      errno = failure;
      if (failure == EEXIST) continue;
      break;
    }
    descriptor_ = descriptor;
    temporary_ = std::move(name);
    // It gets the permissions of the file that it is to replace, if there is one. Whoever may not
    // change them, on some file systems, keeps those of a new file.
    struct stat status = {};
    if (stat(target_.c_str(), &status) == 0 && S_ISREG(status.st_mode)) {
      [[maybe_unused]] const int changed = fchmod(descriptor, status.st_mode & 0777);
    }
    return;
  }
  Fail("cannot be written");
}

OutputFile::~OutputFile() {
  if (descriptor_ > STDERR_FILENO) close(descriptor_);
  if (temporary_.empty()) return;
  unlink(temporary_.c_str());
  ForgetTemporary(temporary_);
}

void OutputFile::Write(std::string_view bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) Flush();
  if (bytes.size() > kBufferBytes) return WriteAll(bytes);
  buffer_.append(bytes);
}

bool OutputFile::GiveRows(const std::function<void(RowSink& row)>& tell) {
  return descriptor_ == kOfCaller && CurrentCaller().TakeRows(path_, tell);
}

void OutputFile::Flush() {
  WriteAll(buffer_);
  buffer_.clear();
}

void OutputFile::WriteAll(std::string_view bytes) {
  if (descriptor_ == kOfCaller) return CurrentCaller().Write(bytes);
  if (!WriteBytes(descriptor_, bytes)) Fail("cannot be written");
}

void OutputFile::Commit() {
  Flush();
  if (descriptor_ == kOfCaller) return;
  const int descriptor = std::exchange(descriptor_, -1);
  if (close(descriptor) != 0 && errno != EINTR) Fail("cannot be written");
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

ResultFiles::ResultFiles(const ResultPaths& paths) {
  if (paths.json) json.emplace(*paths.json);
  if (paths.csv) csv.emplace(*paths.csv);
  if (paths.summaries) summaries.emplace(*paths.summaries);
}

void ResultFiles::Commit() {
  if (json) json->Commit();
  if (csv) csv->Commit();
  if (summaries) summaries->Commit();
}

void OutputFile::Fail(const char* what) const {
  throw InputError(Printable(path_), std::string(what) + " (" + std::strerror(errno) + ")");
}

void RemoveTemporaries() {
  for (const Slot& slot : slots) {
    if (slot.used) unlink(slot.path.data());
  }
}

namespace {

// A file that is closed at the end, -1 for none.
struct Closed {
  int descriptor;

  ~Closed() {
    if (descriptor >= 0) close(descriptor);
  }
};

}  // namespace

std::string InputName(const std::string& path) { return path == "-" ? "standard input" : path; }

std::string ReadTextInput(const std::string& path, uint64_t max_bytes) {
  const std::string place = Printable(InputName(path));
  const bool is_standard = path == "-";
  const int descriptor =
      is_standard ? CurrentCaller().input : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto fail = [&] { FailToRead(place, "cannot be read", {errno, std::generic_category()}); };
  if (descriptor < 0 && is_standard) throw InputError(place, "the caller does not provide it");
  if (descriptor < 0) fail();
  const Closed closed{is_standard ? -1 : descriptor};
  std::string text;
  std::array<char, 1 << 16> buffer;
  for (;;) {
    const ssize_t count = read(descriptor, buffer.data(), buffer.size());
    if (count == 0) return text;
    if (count < 0 && errno != EINTR) fail();
    if (count > 0) text.append(buffer.data(), static_cast<size_t>(count));
    if (text.size() <= max_bytes) continue;
    throw InputError(place, "too large", "at most " + std::to_string(max_bytes) + " bytes");
  }
}

}  // namespace dlsim::sim
