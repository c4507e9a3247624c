// SPDX-License-Identifier: Apache-2.0
// numpy's .npz archives: a zip file with one .npy file per array, read as streams, written at once.
#pragma once

#include <zip.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "src/trace/npy.h"

namespace dlsim {

struct NpzMember {
  std::string name;       // without .npy
  uint64_t index = 0;     // in the archive
  uint64_t size = 0;      // as the archive declares it; verified while reading
  bool is_stored = true;  // not compressed
};

// An open archive whose directory has been checked. Its members are never held in memory.
class NpzArchive {
 public:
  // Throws InputError for anything that numpy would not have written.
  static std::shared_ptr<NpzArchive> Open(const std::string& path);

  // The same for an archive in memory, which must outlive the result.
  static std::shared_ptr<NpzArchive> OpenMemory(const std::string& place,
                                                std::span<const std::byte> bytes);

  ~NpzArchive();
  NpzArchive(const NpzArchive&) = delete;
  NpzArchive& operator=(const NpzArchive&) = delete;

  const std::string& place() const { return place_; }
  uint64_t size() const { return size_; }  // of the whole archive in bytes
  const std::vector<NpzMember>& members() const { return members_; }
  zip_t* zip() const { return zip_; }

  // To be held while libzip is used: all members read from one file position.
  std::mutex& mutex() const { return mutex_; }

 private:
  NpzArchive(std::string place, zip_source_t* source, uint64_t size);
  void ListMembers();

  std::string place_;
  uint64_t size_;
  mutable std::mutex mutex_;
  zip_t* zip_;
  std::vector<NpzMember> members_;
};

// How to get to the data: reading what precedes it lets the checksum of the member be verified at
// its end; seeking is fast over long distances, but only possible in a stored member.
enum class Skip { kByReading, kBySeeking };

// One pass over a member, restarted when asked for an earlier offset. Thread-safe, also with
// other members of the same archive.
class NpzStream {
 public:
  NpzStream(std::shared_ptr<NpzArchive> archive, NpzMember member);
  ~NpzStream();
  NpzStream(const NpzStream&) = delete;
  NpzStream& operator=(const NpzStream&) = delete;

  // Fills `out` from `offset` on. Throws InputError for a damaged member: a wrong checksum is found
  // when the last byte is read without having skipped any by seeking.
  void Read(uint64_t offset, std::span<std::byte> out, Skip skip);

 private:
  void Reopen();
  void Close();
  void SkipTo(uint64_t offset, Skip skip);
  void Fill(std::span<std::byte> out);
  void CheckEnd();
  [[noreturn]] void Fail(const std::string& reason) const;

  std::shared_ptr<NpzArchive> archive_;
  NpzMember member_;
  zip_file_t* file_ = nullptr;
  uint64_t position_ = 0;
  bool has_seeked_ = false;  // then the checksum of this pass is unknown
};

// Reads from the .npy file that the member is.
ByteSource SourceOf(const std::shared_ptr<NpzArchive>& archive, const NpzMember& member);

// Reads and checks the .npy header of `member`.
NpyHeader ReadNpzHeader(const std::shared_ptr<NpzArchive>& archive, const NpzMember& member);

// Reads from the bytes of the stream's member.
ByteReader NpzReader(std::shared_ptr<NpzStream> stream, Skip skip);

struct NpzBytes {
  std::string name;      // of the array
  std::string contents;  // of its .npy file
};

// Returns an archive of these members, deflated; the same bytes for the same members.
std::string MakeNpz(const std::vector<NpzBytes>& members);

}  // namespace dlsim
