// SPDX-License-Identifier: Apache-2.0
// Read-only files: opened once, then read with pread or mapped into memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "src/trace/byte_source.h"

namespace dlsim {

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
  int descriptor() const { return descriptor_; }

  // Fills `out` from `offset` on; throws InputError if the file ends before.
  void ReadAt(uint64_t offset, std::span<std::byte> out) const;

 private:
  ReadOnlyFile(std::string place, int descriptor);

  std::string place_;  // the path, printable
  int descriptor_;
  uint64_t size_ = 0;
};

// Reads from `file`, which the source keeps open.
ByteSource FileSource(std::shared_ptr<const ReadOnlyFile> file);

// The bytes of a whole file, mapped. Reading them raises SIGBUS if the file is cut meanwhile.
class MappedFile {
 public:
  explicit MappedFile(const ReadOnlyFile& file);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Null for an empty file, which cannot be mapped.
  const std::byte* data() const { return data_; }

 private:
  const std::byte* data_ = nullptr;
  uint64_t size_;
};

// Reads a whole text file of at most `max_bytes`; throws InputError.
std::string ReadTextFile(const std::string& path, uint64_t max_bytes);

}  // namespace dlsim
