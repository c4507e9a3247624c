// SPDX-License-Identifier: Apache-2.0
// What a header parser reads from: a file, a member of an archive, or memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace dlsim {

struct ByteSource {
  std::string place;  // printable name, for messages
  uint64_t size = 0;  // as the file system or the archive declares it

  // Fills `out` with the bytes from `offset` on, or throws. Parsers ask for ascending offsets and
  // never beyond `size`.
  std::function<void(uint64_t offset, std::span<std::byte> out)> read;
};

// Reads from `bytes`, which must outlive the source.
ByteSource MemorySource(std::string place, std::span<const std::byte> bytes);

}  // namespace dlsim
