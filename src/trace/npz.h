// SPDX-License-Identifier: Apache-2.0
// numpy's .npz archives: a zip file with one .npy file per array, read as streams.
#pragma once

#include <zip.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trace/npy.h"

namespace dlsim {

struct NpzMember {
  std::string name;       // without .npy
  uint64_t index = 0;     // in the archive
  uint64_t size = 0;      // as the archive declares it; verified while reading
  bool is_stored = true;  // not compressed
};

// An open archive whose directory has been checked. Its members are never held in memory. Not
// thread-safe.
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
  const std::vector<NpzMember>& members() const { return members_; }
  zip_t* zip() const { return zip_; }

 private:
  NpzArchive(std::string place, zip_source_t* source, uint64_t size);
  void ListMembers(uint64_t archive_size);

  std::string place_;
  zip_t* zip_;
  std::vector<NpzMember> members_;
};

// Reads and checks the .npy header of `member`.
NpyHeader ReadNpzHeader(const std::shared_ptr<NpzArchive>& archive, const NpzMember& member);

// How to get to the data: reading what precedes it lets the checksum of the member be verified at
// its end; seeking is fast, but only possible in a stored member.
enum class Skip { kByReading, kBySeeking };

// Returns a TraceTensor::read over the bytes of `member` from `begin` on. It throws InputError for
// a damaged member: a wrong checksum is found when the last byte is read.
std::function<void(uint64_t, std::span<std::byte>)> NpzReader(std::shared_ptr<NpzArchive> archive,
                                                              const NpzMember& member,
                                                              uint64_t begin, Skip skip);

}  // namespace dlsim
