// SPDX-License-Identifier: Apache-2.0
// Numbers of a known number of bits without gaps between them, the lowest bit first.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "dlsim/histogram.h"
#include "src/profile/bytes.h"

namespace dlsim {

constexpr int BitWidth(uint128_t value) {
  const uint64_t high = static_cast<uint64_t>(value >> 64);
  return high != 0 ? 64 + static_cast<int>(std::bit_width(high))
                   : static_cast<int>(std::bit_width(static_cast<uint64_t>(value)));
}

class BitWriter {
 public:
  void Put(uint128_t value, int width) {
    for (; width > 0; value >>= 32, width -= 32) {
      const int piece = std::min(width, 32);
      pending_ |= (static_cast<uint64_t>(value) & ((uint64_t{1} << piece) - 1)) << pending_bits_;
      pending_bits_ += piece;
      if (pending_bits_ < 32) continue;
      PutWord(pending_ & 0xFFFFFFFF, 4, bytes_);
      pending_ >>= 32;
      pending_bits_ -= 32;
    }
  }

  // Fills the last byte up with zeros and returns all.
  std::string Take() {
    PutWord(pending_, static_cast<size_t>(pending_bits_ + 7) / 8, bytes_);
    pending_ = 0;
    pending_bits_ = 0;
    return std::move(bytes_);
  }

 private:
  std::string bytes_;
  uint64_t pending_ = 0;
  int pending_bits_ = 0;
};

class BitReader {
 public:
  // Both must live as long as this.
  BitReader(const std::string& place, std::string_view bytes) : place_(&place), bytes_(bytes) {}

  uint128_t Get(int width) {
    if (width <= kPiece) return Piece(width);
    const uint128_t low = Piece(kPiece);
    return low | Get(width - kPiece) << kPiece;
  }

  // What is left must be less than a byte of zeros.
  void RequireEnd() {
    const size_t left = bytes_.size() * 8 - position_;
    if (left >= 8 || Piece(static_cast<int>(left)) != 0) {
      throw InputError(*place_, "damaged: bits are left over");
    }
  }

 private:
  static constexpr int kPiece = 56;  // what eight bytes hold from any bit of the first on

  uint64_t Piece(int width) {
    if (bytes_.size() * 8 - position_ < static_cast<size_t>(width)) {
      throw InputError(*place_, "damaged: bits are missing");
    }
    const size_t byte = position_ / 8;
    uint64_t word = 0;
    if (bytes_.size() - byte >= sizeof(word)) {
      std::memcpy(&word, bytes_.data() + byte, sizeof(word));
      if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
    } else {
      for (size_t i = byte; i < bytes_.size(); ++i) {
        word |= uint64_t{static_cast<uint8_t>(bytes_[i])} << (8 * (i - byte));
      }
    }
    word >>= position_ % 8;
    position_ += static_cast<size_t>(width);
    return word & ((uint64_t{1} << width) - 1);
  }

  const std::string* place_;
  std::string_view bytes_;
  size_t position_ = 0;  // in bits
};

}  // namespace dlsim
