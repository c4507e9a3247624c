// SPDX-License-Identifier: Apache-2.0
// The short forms in which devices measure elements, called on the host, equal the definition
// wherever they say that they apply, and apply wherever they should.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/gpu/measured_elements.h"
#include "tests/support/boundaries.h"
#include "tests/support/formats_under_test.h"

namespace dlsim::gpu {
namespace {

// Every seventh: of five patterns around each boundary, each in turn.
std::vector<uint32_t> SomeBoundaryBits(const Format& format) {
  const std::vector<uint32_t> all = BoundaryBits(format);
  std::vector<uint32_t> some;
  for (size_t i = 0; i < all.size(); i += 7) some.push_back(all[i]);
  return some;
}

// Returns how many values were plain.
size_t ExpectSame(const KernelQuestion& question, const std::vector<uint32_t>& bits) {
  size_t plain = 0, differing = 0;
  for (const uint32_t one : bits) {
    const Outcome outcome = MeasureOne(question, std::bit_cast<float>(one));
    plain += outcome == Outcome::kShort ? 1 : 0;
    if (outcome == Outcome::kDiffers && ++differing < 10) ADD_FAILURE() << std::hex << one;
  }
  return plain;
}

TEST(PlainElement, EqualsTheDefinitionOnBoundariesOfEveryFormat) {
  for (const NamedFormat& format : FormatsUnderTest()) {
    const std::vector<uint32_t> bits = SomeBoundaryBits(format.format);
    for (const Subnormals subnormals : {Subnormals::kKeep, Subnormals::kFlushToZero}) {
      for (const float scale : {1.0f, -0x1p14f, 0x1p-60f, 3.7f, 1e-40f, 0.0f, 3e38f,
                                std::numeric_limits<float>::infinity()}) {
        SCOPED_TRACE(format.name + " scale " + std::to_string(scale));
        ExpectSame(QuestionOf({format.format, {}, Overflow::kSaturate, subnormals}, scale), bits);
      }
    }
  }
}

TEST(PlainElement, EqualsTheDefinitionOnASampleOfAllInputs) {
  const std::vector<uint32_t> bits = StratifiedBits(1 << 16);
  for (const NamedFormat& format : FormatsUnderTest()) {
    for (const float scale : {1.0f, 2e15f, 0x1p-30f}) {
      SCOPED_TRACE(format.name);
      ExpectSame(QuestionOf({format.format}, scale), bits);
    }
  }
}

TEST(PlainElement, AppliesToAllThatStaysFinite) {
  for (const Format& format : {kFp16, kCb16}) {
    std::vector<uint32_t> bits;
    for (const uint32_t one : StratifiedBits(1 << 14)) {
      if ((one & ~codec::kSignBit) <= MakeCodecSpec({format}).plain_max_bits) bits.push_back(one);
    }
    EXPECT_EQ(ExpectSame(QuestionOf({format}, 1.0f), bits), bits.size());
  }
  EXPECT_EQ(ExpectSame(QuestionOf({kBf16}, 1.0f), {0x76FFFFFF, 1, 0, 0xF6FFFFFF}), 4u);
  // Infinities, NaNs and what overflows are not plain.
  EXPECT_EQ(ExpectSame(QuestionOf({kFp16}, 1.0f), {0x7F800000, 0xFFC00000, 0x47800000}), 0u);
}

std::vector<Conversion> ConversionsOf(const Format& format) {
  std::vector<Conversion> conversions;
  for (int mode = 0; mode < 5; ++mode) {
    for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
      for (const Subnormals subnormals : {Subnormals::kKeep, Subnormals::kFlushToZero}) {
        conversions.push_back({format, static_cast<Rounding>(mode), overflow, subnormals});
      }
    }
  }
  return conversions;
}

// Returns how many values were measured in the short form.
size_t ExpectSameByFloats(const KernelQuestion& question, const std::vector<uint32_t>& bits) {
  size_t done = 0, differing = 0;
  for (const uint32_t one : bits) {
    const Outcome outcome = MeasureOneByFloats(question, std::bit_cast<float>(one));
    done += outcome == Outcome::kShort ? 1 : 0;
    if (outcome == Outcome::kDiffers && ++differing < 10) ADD_FAILURE() << std::hex << one;
  }
  return done;
}

TEST(ElementByFloats, EqualsTheDefinitionOnBoundariesOfEveryFormatAndMode) {
  for (const NamedFormat& format : FormatsUnderTest()) {
    const std::vector<uint32_t> bits = SomeBoundaryBits(format.format);
    for (const Conversion& conversion : ConversionsOf(format.format)) {
      for (const float scale : {1.0f, -3.7f, 1e-40f, std::numeric_limits<float>::infinity()}) {
        SCOPED_TRACE(format.name + " mode " +
                     std::to_string(static_cast<int>(conversion.rounding)) + " scale " +
                     std::to_string(scale));
        ExpectSameByFloats(QuestionOf(conversion, scale), bits);
      }
    }
  }
}

TEST(ElementByFloats, AppliesToAllInputsOfFp16AndCb16) {
  const std::vector<uint32_t> bits = StratifiedBits(1 << 17);
  for (const Format& format : {kFp16, kCb16}) {
    for (const Conversion& conversion : ConversionsOf(format)) {
      EXPECT_EQ(ExpectSameByFloats(QuestionOf(conversion, 1.0f), bits), bits.size());
    }
  }
  EXPECT_GT(ExpectSameByFloats(QuestionOf({kBf16}, 1.0f), bits), bits.size() / 4 * 3);
}

}  // namespace
}  // namespace dlsim::gpu
