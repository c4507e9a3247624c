// SPDX-License-Identifier: Apache-2.0
// Files: opened once, then read with pread; what else header parsers read from; bytes written.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace dlsim {

// What a header parser reads from: a file, or a member of an archive.
struct ByteSource {
  std::string place;  // printable name, for messages
  uint64_t size = 0;  // as the file system or the archive declares it

  // Fills `out` with the bytes from `offset` on, or throws. Parsers ask for ascending offsets and
  // never beyond `size`.
  std::function<void(uint64_t offset, std::span<std::byte> out)> read;
};

// Says why a file or directory cannot be opened or read. Throws InputError, or std::bad_alloc where
// the system has no memory for it: the input is not to blame.
[[noreturn]] void FailToRead(const std::string& place, const char* what, std::error_code why);

// An open regular file. Its size is that at opening; the file is expected not to change.
class ReadOnlyFile {
 public:
  // Throws InputError for what is missing, unreadable or not a regular file.
  static std::shared_ptr<const ReadOnlyFile> Open(const std::string& path);

  ~ReadOnlyFile();
  ReadOnlyFile(const ReadOnlyFile&) = delete;
  ReadOnlyFile& operator=(const ReadOnlyFile&) = delete;

  const std::string& place() const { return place_; }
  uint64_t size() const { return size_; }

  // Fills `out` from `offset` on; throws InputError if the file ends before. Thread-safe.
  void ReadAt(uint64_t offset, std::span<std::byte> out) const;

  // How far files are read ahead: what a fast disk or a parallel file system sends in the time that
  // a request takes, several times.
  static constexpr uint64_t kAheadBytes = uint64_t{32} << 20;

  // Tells the system that all of the file will be read soon, from begin to end; from now on, ReadAt
  // has it read ahead.
  void ReadAhead() const;

  // The same for a file that will be opened soon, as far as it is read ahead; nothing happens if
  // there is none.
  static void ReadAhead(const std::string& path);

 private:
  ReadOnlyFile(std::string place, int descriptor);

  // Has the system read what follows `offset`.
  void AdviseFrom(uint64_t offset) const;

  std::string place_;  // the path, printable
  int descriptor_;
  uint64_t size_ = 0;
  mutable std::atomic<uint64_t> advised_ = 0;  // up to here; 0 = it is not read ahead
};

// Reads from `file`, which the source keeps open.
ByteSource FileSource(std::shared_ptr<const ReadOnlyFile> file);

// Returns the sorted names of what is in a folder, as far as it can be read.
std::vector<std::string> NamesIn(const std::string& folder, std::error_code& failed);

// Reads a whole text file of at most `max_bytes`; throws InputError.
std::string ReadTextFile(const std::string& path, uint64_t max_bytes);

// Writes all of them, however often a signal interrupts it or a pipe is full. False if the device
// is full or gone; errno says why.
bool WriteBytes(int descriptor, std::string_view bytes);

}  // namespace dlsim
