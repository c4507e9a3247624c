// SPDX-License-Identifier: Apache-2.0
// What a conversion means, from its definition alone: the float32 magnitudes at which its results
// begin, found by exact arithmetic (MPFR). Shares no code with codec.h, only the names of options.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dlsim/codec.h"

namespace dlsim {

class BreakpointOracle {
 public:
  explicit BreakpointOracle(const Conversion& conversion);

  // Sets codes[i] to the code of the float32 bits inputs[i], whose random bits for kStochastic are
  // words[i].
  template <class Code>
  void Encode(std::span<const uint32_t> inputs, std::span<const uint32_t> words, Code* codes) const;

  // Returns how many of the 2^32 random words round a finite magnitude away from zero: its exact
  // distance from the code below, in units of 2^-32 of the gap, rounded down.
  uint64_t WordsThatRoundUp(uint32_t magnitude) const;

  // Float32 magnitudes where results change in some mode: the values of all codes, and those where
  // this conversion's results begin.
  std::vector<uint32_t> Breakpoints() const;

  // Returns the value of a magnitude code as float32 bits; NaN codes give the quiet NaN that keeps
  // their mantissa.
  uint32_t Decode(uint32_t magnitude_code) const;

 private:
  static constexpr uint32_t kInfinity = 0x7F800000;
  static constexpr int kGuideShift = 14;

  // Magnitude codes are numbered as if finite values went on past the largest one: `rounded` is at
  // most max_code_ + 1, which stands for everything beyond.
  struct Side {
    std::vector<uint32_t> begin;   // first float32 magnitude of each rounded code; then kInfinity
    std::vector<uint32_t> result;  // magnitude code of each rounded code by the rules
    std::vector<uint32_t> guide;  // rounded code of each magnitude whose low kGuideShift bits are 0
  };

  Side MakeSide(const Conversion& conversion, bool negative) const;
  uint32_t NanCode(uint32_t magnitude) const;
  bool RoundsUp(size_t rounded, uint32_t magnitude, uint32_t word) const;
  static size_t Find(const Side& side, uint32_t magnitude);

  Format format_;
  bool stochastic_;
  uint32_t max_code_;          // largest finite magnitude code
  uint32_t infinity_code_;     // result of an infinite input
  uint32_t sign_code_;         // sign bit of the code
  bool zero_gap_;              // no subnormals: the gap above zero is wider than a power of two
  std::vector<double> value_;  // of each rounded code, exact
  Side sides_[2];              // of positive and negative inputs
};

// Returns the rounded code that a finite magnitude has.
inline size_t BreakpointOracle::Find(const Side& side, uint32_t magnitude) {
  size_t rounded = side.guide[magnitude >> kGuideShift];
  while (magnitude >= side.begin[rounded + 1]) ++rounded;
  return rounded;
}

template <class Code>
void BreakpointOracle::Encode(std::span<const uint32_t> inputs, std::span<const uint32_t> words,
                              Code* codes) const {
  size_t rounded = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool negative = inputs[i] >> 31 != 0;
    const uint32_t magnitude = inputs[i] & 0x7FFFFFFF;
    const uint32_t sign = negative ? sign_code_ : 0;
    if (magnitude >= kInfinity) {
      codes[i] =
          static_cast<Code>(sign | (magnitude == kInfinity ? infinity_code_ : NanCode(magnitude)));
      continue;
    }
    const Side& side = sides_[negative];
    if (magnitude < side.begin[rounded] || magnitude >= side.begin[rounded + 1]) {
      rounded = Find(side, magnitude);
    }
    const bool up = stochastic_ && RoundsUp(rounded, magnitude, words[i]);
    codes[i] = static_cast<Code>(sign | side.result[rounded + up]);
  }
}

}  // namespace dlsim
