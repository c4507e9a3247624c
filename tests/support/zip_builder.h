// SPDX-License-Identifier: Apache-2.0
// Writes zip archives byte by byte, so that a test can lie in any field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/trace_test_util.h"

namespace dlsim {

inline uint32_t Crc32(std::string_view bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
  }
  return ~crc;
}

// A member as it will stand in the archive; absent numbers are the true ones.
struct ZipMember {
  std::string name;
  std::string data;  // as stored, that is compressed unless `method` is 0
  uint16_t method = 0;
  uint16_t flags = 0;
  std::optional<uint32_t> crc = std::nullopt;
  std::optional<uint32_t> size = std::nullopt;
  std::optional<uint32_t> compressed_size = std::nullopt;
  std::optional<uint32_t> offset = std::nullopt;  // of the local header, in the directory
};

inline std::string ZipFields(const ZipMember& member) {
  const uint32_t stored = static_cast<uint32_t>(member.data.size());
  return LittleEndian(member.flags, 2) + LittleEndian(member.method, 2) + LittleEndian(0, 2) +
         LittleEndian(0x21, 2) + LittleEndian(member.crc.value_or(Crc32(member.data)), 4) +
         LittleEndian(member.compressed_size.value_or(stored), 4) +
         LittleEndian(member.size.value_or(stored), 4) + LittleEndian(member.name.size(), 2) +
         LittleEndian(0, 2);
}

inline std::string ZipBytes(const std::vector<ZipMember>& members) {
  std::string archive;
  std::string directory;
  for (const ZipMember& member : members) {
    const uint32_t offset = static_cast<uint32_t>(archive.size());
    archive += "PK\3\4" + LittleEndian(20, 2) + ZipFields(member) + member.name + member.data;
    directory += "PK\1\2" + LittleEndian(20, 2) + LittleEndian(20, 2) + ZipFields(member) +
                 std::string(10, '\0') + LittleEndian(member.offset.value_or(offset), 4) +
                 member.name;
  }
  const std::string end = "PK\5\6" + LittleEndian(0, 4) + LittleEndian(members.size(), 2) +
                          LittleEndian(members.size(), 2) + LittleEndian(directory.size(), 4) +
                          LittleEndian(archive.size(), 4) + LittleEndian(0, 2);
  return archive + directory + end;
}

// Appends bits as deflate packs them: from the least significant bit of each byte on.
class DeflateBits {
 public:
  void Add(uint32_t bits, int count) {
    for (int i = 0; i < count; ++i) {
      if (used_ == 0) bytes_.push_back('\0');
      const uint32_t byte = static_cast<uint8_t>(bytes_.back()) | (bits >> i & 1) << used_;
      bytes_.back() = static_cast<char>(byte);
      used_ = (used_ + 1) % 8;
    }
  }

  // Adds a code of the fixed Huffman table; these are packed from their first bit on.
  void AddCode(uint32_t code, int count) {
    for (int i = count; i-- > 0;) Add(code >> i & 1, 1);
  }

  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
  int used_ = 0;
};

// Returns a deflate stream of `text` followed by `repeats` times 258 copies of its last byte.
inline std::string Deflate(std::string_view text, size_t repeats = 0) {
  DeflateBits bits;
  bits.Add(0b011, 3);  // the last block, with fixed codes
  for (const char letter : text) {
    const uint32_t value = static_cast<uint8_t>(letter);
    if (value < 144) {
      bits.AddCode(0x30 + value, 8);
    } else {
      bits.AddCode(0x190 + value - 144, 9);
    }
  }
  for (size_t i = 0; i < repeats; ++i) {
    bits.AddCode(0b11000101, 8);  // length 258
    bits.AddCode(0, 5);           // distance 1
  }
  bits.AddCode(0, 7);  // the end of the block
  return bits.Take();
}

inline ZipMember Deflated(const std::string& name, const std::string& text) {
  ZipMember member{.name = name, .data = Deflate(text), .method = 8};
  member.crc = Crc32(text);
  member.size = static_cast<uint32_t>(text.size());
  return member;
}

}  // namespace dlsim
