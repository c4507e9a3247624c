// SPDX-License-Identifier: Apache-2.0
#include "src/base/file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>
#include <system_error>
#include <utility>

#include "dlsim/error.h"

namespace dlsim {
namespace {

constexpr const char* kNotOpened = "cannot be opened";
constexpr const char* kNotRead = "cannot be read";

// Linux reads no more for one piece of advice than for a request, of which this is the smallest for
// files that are read in order.
constexpr uint64_t kAdviceBytes = uint64_t{256} << 10;

std::error_code Why(int error) { return {error, std::generic_category()}; }

}  // namespace

void FailToRead(const std::string& place, const char* what, std::error_code why) {
  if (why == std::errc::not_enough_memory) throw std::bad_alloc();
  throw InputError(place, std::string(what) + ": " + why.message());
}

ReadOnlyFile::ReadOnlyFile(std::string place, int descriptor)
    : place_(std::move(place)), descriptor_(descriptor) {}

ReadOnlyFile::~ReadOnlyFile() { close(descriptor_); }

std::shared_ptr<const ReadOnlyFile> ReadOnlyFile::Open(const std::string& path) {
  const std::string place = Printable(path);
  // Without O_NONBLOCK a named pipe would block until somebody writes to it.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) FailToRead(place, kNotOpened, Why(errno));
  const std::shared_ptr<ReadOnlyFile> file(new ReadOnlyFile(place, descriptor));
  struct stat status {};
  if (fstat(descriptor, &status) != 0) FailToRead(place, kNotRead, Why(errno));
  if (S_ISDIR(status.st_mode)) throw InputError(place, "is a directory", "a file");
  if (!S_ISREG(status.st_mode)) throw InputError(place, "is not a regular file", "a file");
  file->size_ = static_cast<uint64_t>(status.st_size);
  return file;
}

void ReadOnlyFile::ReadAt(uint64_t offset, std::span<std::byte> out) const {
  if (advised_ > 0) AdviseFrom(offset);
  while (!out.empty()) {
    const ssize_t count = pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) FailToRead(place_, kNotRead, Why(errno));
    if (count == 0) {
      throw InputError(place_, "was cut while being read", std::to_string(size_) + " bytes",
                       std::to_string(offset));
    }
    offset += static_cast<uint64_t>(count);
    out = out.subspan(static_cast<size_t>(count));
  }
}

ByteSource FileSource(std::shared_ptr<const ReadOnlyFile> file) {
  return {.place = file->place(),
          .size = file->size(),
          .read = [file](uint64_t offset, std::span<std::byte> out) { file->ReadAt(offset, out); }};
}

// Only hints: failures are harmless.
void ReadOnlyFile::ReadAhead() const {
  posix_fadvise(descriptor_, 0, 0, POSIX_FADV_SEQUENTIAL);
  AdviseFrom(0);
}

// Several threads read: each piece of advice is given by one. What a read jumps over needs none.
void ReadOnlyFile::AdviseFrom(uint64_t offset) const {
  const uint64_t end = std::min(size_, offset + kAheadBytes);
  uint64_t advised = advised_;
  while (advised < end) {
    const uint64_t begin = std::max(advised, std::min(offset, size_));
    const uint64_t next = std::min(begin + kAdviceBytes, end);
    if (!advised_.compare_exchange_weak(advised, next)) continue;
    posix_fadvise(descriptor_, static_cast<off_t>(begin), static_cast<off_t>(next - begin),
                  POSIX_FADV_WILLNEED);
    advised = next;
  }
}

void ReadOnlyFile::ReadAhead(const std::string& path) {
  try {
    Open(path)->ReadAhead();
  } catch (const Error&) {  // the one who reads it says so
  }
}

std::vector<std::string> NamesIn(const std::string& folder, std::error_code& failed) {
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    names.push_back(entry->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::string ReadTextFile(const std::string& path, uint64_t max_bytes) {
  const std::shared_ptr<const ReadOnlyFile> file = ReadOnlyFile::Open(path);
  if (file->size() > max_bytes) {
    throw InputError(file->place(), "too large", "at most " + std::to_string(max_bytes) + " bytes",
                     std::to_string(file->size()));
  }
  std::string text(file->size(), '\0');
  file->ReadAt(0, std::as_writable_bytes(std::span(text)));
  return text;
}

// Signals interrupt a write, and a pipe may have been opened not to block.
bool WriteBytes(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(descriptor, bytes.data(), bytes.size());
    if (count == 0) errno = ENOSPC;  // nothing would ever be written
    if (count > 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {
      pollfd writable = {.fd = descriptor, .events = POLLOUT, .revents = 0};
      poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace dlsim
