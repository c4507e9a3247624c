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
  std::string name;    // without .npy
  uint64_t index = 0;  // in the archive
  uint64_t size = 0;   // as the archive declares it; verified while reading
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

// Reads from the .npy file that the member is, in one pass, which is restarted when asked for an
// offset long before; offsets ought to ascend but for what threads do. Thread-safe, also with other
// members of the same archive. Throws InputError for a damaged member: a wrong checksum is found
// when the last byte is read.
ByteSource SourceOf(const std::shared_ptr<NpzArchive>& archive, const NpzMember& member);

// Reads and checks the .npy header of `member`.
NpyHeader ReadNpzHeader(const std::shared_ptr<NpzArchive>& archive, const NpzMember& member);

struct NpzBytes {
  std::string name;      // of the array
  std::string contents;  // of its .npy file
};

// Returns an archive of these members, deflated; the same bytes for the same members.
std::string MakeNpz(const std::vector<NpzBytes>& members);

}  // namespace dlsim
