// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding of arrays equals the scalar reference, bit for bit, for every SIMD target.
#include <gtest/gtest.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "dlsim/convert.h"
#include "tests/support/boundaries.h"
#include "tests/support/formats_under_test.h"

namespace dlsim {
namespace {

std::vector<uint16_t> EncodeByReference(const ArrayConversion& how, std::span<const float> values) {
  const CodecSpec spec = MakeCodecSpec(how.conversion);
  std::vector<uint16_t> codes(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t scaled = std::bit_cast<uint32_t>(values[i] * how.scale);
    const uint32_t random = RandomBits(how.random, how.first_index + i);
    codes[i] = static_cast<uint16_t>(EncodeWith<Rounding::kStochastic>(spec, scaled, random).code);
  }
  return codes;
}

std::vector<uint16_t> EncodeByKernel(const ArrayConversion& how, std::span<const float> values) {
  std::vector<uint16_t> codes(values.size());
  EncodeArray(how, values, std::span<uint16_t>(codes));
  return codes;
}

// The formats with a kernel of their own for stochastic rounding, and two laid out alike.
class Stochastic : public testing::TestWithParam<NamedFormat> {
 protected:
  void TearDown() override { UseSimdTarget(""); }

  static ArrayConversion How() {
    ArrayConversion how = {{GetParam().format, Rounding::kStochastic}};
    how.random = {0x0123456789ABCDEF, 7};
    return how;
  }

  static void ExpectAsReferenceOnEveryTarget(const ArrayConversion& how,
                                             std::span<const float> values) {
    const std::vector<uint16_t> expected = EncodeByReference(how, values);
    for (const std::string& target : SupportedSimdTargets()) {
      UseSimdTarget(target);
      const std::vector<uint16_t> codes = EncodeByKernel(how, values);
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(codes[i], expected[i]) << target << " element " << i << std::hex << " bits "
                                         << std::bit_cast<uint32_t>(values[i]);
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Formats, Stochastic,
                         testing::Values(NamedFormat{"fp16", kFp16}, NamedFormat{"bf16", kBf16},
                                         NamedFormat{"cb16", kCb16}, ParseFormat("e7m8"),
                                         ParseFormat("e2m13")),
                         [](const auto& test) { return test.param.name; });

TEST_P(Stochastic, EveryBoundaryAsReference) {
  const std::vector<float> values = AsFloats(BoundaryBits(GetParam().format));
  for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
    for (const Subnormals subnormals : {Subnormals::kKeep, Subnormals::kFlushToZero}) {
      ArrayConversion how = How();
      how.conversion.overflow = overflow;
      how.conversion.subnormals = subnormals;
      ASSERT_NO_FATAL_FAILURE(ExpectAsReferenceOnEveryTarget(how, values));
    }
  }
}

TEST_P(Stochastic, AnySeedStreamAndFirstIndex) {
  const std::vector<float> values = AsFloats(StratifiedBits(300007));
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1} << 63, ~uint64_t{0}}) {
    for (const uint32_t stream : {0u, 0xFFFFFFFFu}) {
      // The counter's first word passes 2^32 before, in and after the first vectors of blocks.
      for (const uint64_t before : {8u, 56u, 64u, 248u, 256u, 1000u, 4096u}) {
        ArrayConversion how = How();
        how.random = {seed, stream};
        how.first_index = (uint64_t{5} << 35) - before;
        ASSERT_NO_FATAL_FAILURE(ExpectAsReferenceOnEveryTarget(how, values));
      }
    }
  }
}

TEST_P(Stochastic, ScaleMultipliesInFloat32BeforeEncoding) {
  const std::vector<float> values = AsFloats(StratifiedBits(300007));
  for (const float scale : {0.0f, 1e-30f, 3.0f, 32768.0f, 2e15f, 1e38f}) {
    ArrayConversion how = How();
    how.scale = scale;
    ASSERT_NO_FATAL_FAILURE(ExpectAsReferenceOnEveryTarget(how, values)) << scale;
  }
}

TEST_P(Stochastic, AnyLengthAndAlignment) {
  constexpr size_t kLengths = 3 * 256 + 2;
  constexpr uint16_t kMarker = 0xABCD;
  const std::vector<float> source = AsFloats(StratifiedBits(4000003));
  for (size_t offset = 0; offset < 3; ++offset) {
    const auto values = std::span<const float>(source).subspan(offset, kLengths);
    const std::vector<uint16_t> expected = EncodeByReference(How(), values);
    for (const std::string& target : SupportedSimdTargets()) {
      UseSimdTarget(target);
      for (size_t length = 0; length < kLengths; ++length) {
        std::vector<uint16_t> codes(offset + length + 1, kMarker);
        EncodeArray(How(), values.first(length),
                    std::span<uint16_t>(codes).subspan(offset, length));
        for (size_t i = 0; i < length; ++i) ASSERT_EQ(codes[offset + i], expected[i]) << target;
        ASSERT_EQ(codes.back(), kMarker) << target << " wrote past the end";
      }
    }
  }
}

// Returns a value that drops `dropped` bits and whose remainder is `distance` units below the
// smallest that these random bits round up; zero if there is none.
float ValueThatTies(const CodecSpec& spec, uint32_t random, uint32_t dropped, uint32_t distance) {
  const uint32_t used = std::min(dropped, 32u), excess = dropped - used;
  const uint32_t remainder = (~random >> (32 - used)) + 1 - distance;
  uint64_t significand = uint64_t{remainder} << excess;
  if (dropped < 24) significand |= codec::kImplicitBit;
  if (significand >> 23 != 1) return 0.0f;
  const uint32_t mantissa = static_cast<uint32_t>(significand) & codec::kMantissaMask;
  return std::bit_cast<float>(((spec.subnormal_shift - dropped) << 23) | mantissa);
}

TEST_P(Stochastic, SecondPlaneDecidesTies) {
  const ArrayConversion how = How();
  const CodecSpec spec = MakeCodecSpec(how.conversion);
  if (spec.min_normal_bits == 0) GTEST_SKIP() << "16 random bits are enough for every value";
  std::vector<float> values(200000);
  size_t ties = 0, ups = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t random = RandomBits(how.random, i);
    const uint32_t dropped = static_cast<uint32_t>(17 + i % 20);
    values[i] = ValueThatTies(spec, random, dropped, static_cast<uint32_t>(i / 20 % 3));
    const uint32_t bits = std::bit_cast<uint32_t>(values[i]);
    // A tie of the high halves: the low half of the random bits changes the code.
    const auto code = [&](uint32_t r) {
      return EncodeWith<Rounding::kStochastic>(spec, bits, r).code;
    };
    if (code(random & 0xFFFF0000) == code(random | 0xFFFF)) continue;
    ++ties;
    ups += code(random) == code(random | 0xFFFF);
  }
  EXPECT_GT(ties, 30000u);
  EXPECT_GT(ups, ties / 4);
  EXPECT_LT(ups, ties / 4 * 3);
  ASSERT_NO_FATAL_FAILURE(ExpectAsReferenceOnEveryTarget(how, values));
}

#ifdef _OPENMP
TEST_P(Stochastic, SameBitsForEveryNumberOfThreads) {
  std::mt19937 random(20240611);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-36, 3);
  std::vector<float> values(5 * 65536 + 77);
  for (float& value : values) value = std::ldexp(normal(random), exponent(random));
  ArrayConversion how = How();
  how.first_index = 8 * 12345;
  const std::vector<uint16_t> expected = EncodeByReference(how, values);
  const int threads = omp_get_max_threads();
  for (const int count : {1, 2, 4}) {
    omp_set_num_threads(count);
    EXPECT_TRUE(EncodeByKernel(how, values) == expected) << count << " threads";
  }
  omp_set_num_threads(threads);
}
#endif

TEST_P(Stochastic, SameBitsInEveryRoundingDirection) {
  const std::vector<float> values = AsFloats(StratifiedBits(300007));
  const std::vector<uint16_t> expected = EncodeByReference(How(), values);
  for (const std::string& target : SupportedSimdTargets()) {
    UseSimdTarget(target);
    for (const int direction : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      std::fesetround(direction);
      const std::vector<uint16_t> codes = EncodeByKernel(How(), values);
      std::fesetround(FE_TONEAREST);
      EXPECT_TRUE(codes == expected) << target << " direction " << direction;
    }
  }
}

}  // namespace
}  // namespace dlsim
