// SPDX-License-Identifier: Apache-2.0
// The device's functions for single elements, called on the host, equal the scalar reference.
#include "gpu/encode/convert_body.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "src/base/parallel.h"
#include "tests/exhaustive/proof_formats.h"
#include "tests/support/boundaries.h"

namespace dlsim::gpu {
namespace {

constexpr RandomStream kRandom = {0x0123456789ABCDEF, 7};

// Encodes groups from `index` on.
using Encoder = void (*)(const Conversion&, uint64_t index, const uint32_t (&bits)[kGroup],
                         uint32_t (&codes)[kGroup]);

template <Format kFormat, Rounding kRounding>
void EncodeTuned(const Conversion& conversion, uint64_t index, const uint32_t (&bits)[kGroup],
                 uint32_t (&codes)[kGroup]) {
  EncodeGroup<kRounding>(MakeTunedCodec<kFormat>(conversion), kRandom, index, bits, codes);
}

template <Rounding kRounding>
void EncodeAny(const Conversion& conversion, uint64_t index, const uint32_t (&bits)[kGroup],
               uint32_t (&codes)[kGroup]) {
  EncodeGroup<kRounding>(AnyCodec{MakeCodecSpec(conversion)}, kRandom, index, bits, codes);
}

template <Rounding kRounding>
Encoder EncoderOf(const Format& format) {
  if (format == kFp16) return EncodeTuned<kFp16, kRounding>;
  if (format == kBf16) return EncodeTuned<kBf16, kRounding>;
  if (format == kCb16) return EncodeTuned<kCb16, kRounding>;
  return EncodeAny<kRounding>;
}

Encoder EncoderOf(const Conversion& conversion) {
  return WithRounding(conversion.rounding, [&](auto mode) {
    return EncoderOf<decltype(mode)::value>(conversion.format);
  });
}

// Compares one group with the reference; returns the number of differences.
uint64_t Differences(const Conversion& conversion, Encoder encode, uint64_t index,
                     const uint32_t (&bits)[kGroup]) {
  const CodecSpec spec = MakeCodecSpec(conversion);
  const bool stochastic = conversion.rounding == Rounding::kStochastic;
  uint32_t codes[kGroup];
  encode(conversion, index, bits, codes);
  uint64_t differences = 0;
  for (uint32_t i = 0; i < kGroup; ++i) {
    const uint32_t random = stochastic ? RandomBits(kRandom, index + i) : 0;
    const uint32_t expected = Encode(spec, conversion.rounding, bits[i], random).code;
    if (expected == codes[i]) continue;
    if (differences++ == 0) {
      ADD_FAILURE() << std::hex << "input " << bits[i] << " random bits " << random << ": code "
                    << codes[i] << ", expected " << expected;
    }
  }
  return differences;
}

// Encodes the inputs bits_of(0), bits_of(1), ..., a multiple of kGroup of them, on all threads.
template <class Bits>
void ExpectAsReference(const Conversion& conversion, uint64_t count, const Bits& bits_of) {
  const Encoder encode = EncoderOf(conversion);
  std::atomic<bool> differs = false;
  ParallelForBlocks(count, [&](size_t begin, size_t length) {
    for (size_t i = begin; i < begin + length && !differs; i += kGroup) {
      uint32_t bits[kGroup];
      for (uint32_t j = 0; j < kGroup; ++j) bits[j] = bits_of(i + j);
      if (Differences(conversion, encode, i, bits) > 0) differs = true;
    }
  });
}

class EncodeElementTest : public testing::TestWithParam<std::tuple<NamedFormat, NamedRounding>> {
 protected:
  // One for each pair of policies.
  static std::vector<Conversion> Conversions() {
    std::vector<Conversion> conversions;
    for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
      for (const Subnormals subnormals : {Subnormals::kKeep, Subnormals::kFlushToZero}) {
        conversions.push_back({std::get<0>(GetParam()).format, std::get<1>(GetParam()).rounding,
                               overflow, subnormals});
      }
    }
    return conversions;
  }
};
INSTANTIATE_TEST_SUITE_P(All, EncodeElementTest,
                         testing::Combine(testing::ValuesIn(FormatsUnderTest()),
                                          testing::ValuesIn(kRoundings)),
                         [](const auto& test) {
                           return TestName(std::get<0>(test.param)) + "_" +
                                  std::get<1>(test.param).name;
                         });

TEST_P(EncodeElementTest, BoundariesAsReferenceUnderEveryPolicy) {
  for (const Conversion& conversion : Conversions()) {
    std::vector<uint32_t> inputs = BoundaryBits(conversion.format);
    inputs.resize((inputs.size() + kGroup - 1) / kGroup * kGroup);
    ExpectAsReference(conversion, inputs.size(), [&](uint64_t i) { return inputs[i]; });
  }
}

TEST_P(EncodeElementTest, SampledInputsAsReferenceUnderEveryPolicy) {
  for (const Conversion& conversion : Conversions()) {
    // An odd factor permutes all patterns, so that the elements of a group differ in kind.
    ExpectAsReference(conversion, uint64_t{1} << 19,
                      [](uint64_t i) { return static_cast<uint32_t>(i * 8191) * 0x9E3779B1; });
  }
}

// Returns a value that drops `dropped` bits and whose remainder is `distance` units below the
// smallest that these random bits round up; zero if there is none.
uint32_t BitsThatTie(const CodecSpec& spec, uint32_t random, uint32_t dropped, uint32_t distance) {
  const uint32_t used = std::min(dropped, 32u), excess = dropped - used;
  uint64_t significand = uint64_t{(~random >> (32 - used)) + 1 - distance} << excess;
  if (dropped < 24) significand |= codec::kImplicitBit;
  if (significand >> 23 != 1) return 0;
  const uint32_t mantissa = static_cast<uint32_t>(significand) & codec::kMantissaMask;
  return ((spec.subnormal_shift - dropped) << 23) | mantissa;
}

TEST(EncodeElementTies, LowHalfOfTheRandomBitsDecides) {
  for (const Format& format : {kFp16, kCb16}) {
    const Conversion conversion = {format, Rounding::kStochastic};
    const CodecSpec spec = MakeCodecSpec(conversion);
    size_t ties = 0;
    for (uint32_t index = 0; index < 100000; index += kGroup) {
      uint32_t bits[kGroup];
      for (uint32_t j = 0; j < kGroup; ++j) {
        const uint32_t i = index + j, random = RandomBits(kRandom, i);
        bits[j] = BitsThatTie(spec, random, 17 + i % 20, i / 20 % 3);
        ties += EncodeWith<Rounding::kStochastic>(spec, bits[j], random & 0xFFFF0000).code !=
                EncodeWith<Rounding::kStochastic>(spec, bits[j], random | 0xFFFF).code;
      }
      ASSERT_EQ(Differences(conversion, EncoderOf(conversion), index, bits), 0u);
    }
    EXPECT_GT(ties, 15000u);
  }
}

}  // namespace
}  // namespace dlsim::gpu
