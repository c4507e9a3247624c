// SPDX-License-Identifier: Apache-2.0
// The numbers and strings of a profile as bytes: little-endian words, variable-length integers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "dlsim/error.h"

namespace dlsim {

inline void PutWord(uint64_t value, size_t bytes, std::string& out) {
  std::array<char, sizeof(value)> word;
  for (size_t i = 0; i < bytes; ++i) word[i] = static_cast<char>(value >> (8 * i) & 0xFF);
  out.append(word.data(), bytes);
}

// Seven bits per byte, the lowest first; the last byte has no top bit.
inline void PutVarint(uint64_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

// Small magnitudes of both signs become small numbers.
constexpr uint64_t ZigZag(int64_t value) {
  return (static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63);
}
constexpr int64_t UnZigZag(uint64_t value) {
  return static_cast<int64_t>((value >> 1) ^ (~(value & 1) + 1));
}

inline void PutString(std::string_view text, std::string& out) {
  PutVarint(text.size(), out);
  out.append(text);
}

// Takes what a writer put; throws InputError where the bytes cannot be its.
class ByteReader {
 public:
  // Both must live as long as this.
  ByteReader(const std::string& place, std::string_view bytes) : place_(&place), bytes_(bytes) {}

  [[noreturn]] void Fail(std::string_view problem) const { throw InputError(*place_, problem); }
  void Require(bool condition, std::string_view problem) const {
    if (!condition) Fail(problem);
  }

  std::string_view Take(uint64_t size) {
    if (size > bytes_.size()) Fail("damaged: a part reaches beyond its end");
    const std::string_view taken = bytes_.substr(0, static_cast<size_t>(size));
    bytes_.remove_prefix(taken.size());
    return taken;
  }

  uint8_t Byte() {
    if (bytes_.empty()) Fail("damaged: a part ends too early");
    const char byte = bytes_.front();
    bytes_.remove_prefix(1);
    return static_cast<uint8_t>(byte);
  }

  uint64_t Word(size_t bytes) {
    uint64_t value = 0;
    const std::string_view taken = Take(bytes);
    for (size_t i = 0; i < bytes; ++i) value |= uint64_t{static_cast<uint8_t>(taken[i])} << (8 * i);
    return value;
  }

  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint64_t byte = Byte();
      if (shift == 63 && byte > 1) break;
      value |= (byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    Fail("damaged: a number is too long");
  }

  int64_t Signed() { return UnZigZag(Varint()); }
  std::string String() { return std::string(Take(Varint())); }

  // A number of things of which each takes `bytes` at least.
  size_t Count(size_t bytes = 1) {
    const uint64_t count = Varint();
    if (count > bytes_.size() / bytes) Fail("damaged: more of something than there are bytes");
    return static_cast<size_t>(count);
  }

  void RequireEnd() const { Require(bytes_.empty(), "damaged: a part has too many bytes"); }
  std::string_view rest() const { return bytes_; }
  const std::string& place() const { return *place_; }

 private:
  const std::string* place_;
  std::string_view bytes_;
};

}  // namespace dlsim
