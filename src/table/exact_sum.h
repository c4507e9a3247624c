// SPDX-License-Identifier: Apache-2.0
// Sums of integers times powers of two, exact: a long integer (Kulisch, 1971).
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace dlsim {

__extension__ using uint128_t = unsigned __int128;

// Holds multiples of 2^kLowest below 2^(kLowest + 64 * kWords - 1), of either sign: sums of up to
// 2^64 squares of float32 values and of their errors.
class ExactSum {
 public:
  // Adds value * 2^exponent.
  void Add(uint128_t value, int exponent) {
    if (near_ == 0) unit_ = exponent;
    const int shift = exponent - unit_;
    if (shift < 0 || shift >= kNearBits || value >> (kNearBits - shift) != 0) {
      return AddWords(value, exponent, false);
    }
    near_ += value << shift;
    if (near_ >> kNearBits != 0) AddWords(std::exchange(near_, 0), unit_, false);
  }
  void Subtract(uint128_t value, int exponent) { AddWords(value, exponent, true); }

  // Returns the sum, rounded to nearest, ties to even.
  double Value() const {
    if (!is_far_) return std::ldexp(static_cast<double>(near_), unit_);
    ExactSum sum = *this;
    sum.AddWords(near_, unit_, false);
    std::array<uint64_t, kWords> words = sum.words_;
    const bool negative = words[kWords - 1] >> 63 != 0;
    if (negative) Negate(words);
    size_t top = kWords;
    while (top > 0 && words[top - 1] == 0) --top;
    if (top == 0) return 0;
    const int zeros = std::countl_zero(words[top - 1]);
    // The 64 bits from the leading one on; whatever is below makes the last of them odd, so that
    // rounding them sees it.
    uint64_t leading = words[top - 1] << zeros;
    if (top > 1 && zeros > 0) leading |= words[top - 2] >> (64 - zeros);
    bool rest = top > 1 && (words[top - 2] << zeros) != 0;
    for (size_t i = 0; i + 2 < top; ++i) rest |= words[i] != 0;
    const int exponent = kLowest + static_cast<int>(top - 1) * 64 - zeros;
    const double magnitude = std::ldexp(static_cast<double>(leading | (rest ? 1 : 0)), exponent);
    return negative ? -magnitude : magnitude;
  }

 private:
  static constexpr int kLowest = -448;
  static constexpr size_t kWords = 13;

  void AddWords(uint128_t value, int exponent, bool subtract) {
    if (value == 0) return;
    if (!std::exchange(is_far_, true)) words_ = {};
    const auto place = static_cast<unsigned>(exponent - kLowest);
    const unsigned shift = place % 64;
    const auto low = static_cast<uint64_t>(value), high = static_cast<uint64_t>(value >> 64);
    const std::array<uint64_t, 3> parts = {low << shift,
                                           shift == 0 ? high : high << shift | low >> (64 - shift),
                                           shift == 0 ? 0 : high >> (64 - shift)};
    uint64_t carry = 0;
    for (size_t i = place / 64, part = 0; i < kWords && (part < 3 || carry != 0); ++i, ++part) {
      const uint64_t add = part < 3 ? parts[part] : 0;
      const uint128_t sum =
          subtract ? uint128_t{words_[i]} - add - carry : uint128_t{words_[i]} + add + carry;
      words_[i] = static_cast<uint64_t>(sum);
      carry = static_cast<uint64_t>(sum >> 64) & 1;
    }
  }

  static void Negate(std::array<uint64_t, kWords>& words) {
    uint64_t carry = 1;
    for (uint64_t& word : words) {
      word = ~word + carry;
      carry = carry != 0 && word == 0 ? 1 : 0;
    }
  }

  // What is near its first summand: near_ * 2^unit_, which is added to the words at the end.
  static constexpr int kNearBits = 127;
  uint128_t near_ = 0;
  int unit_ = 0;
  bool is_far_ = false;  // something is in the words, which are not set before
  std::array<uint64_t, kWords> words_;
};

}  // namespace dlsim
