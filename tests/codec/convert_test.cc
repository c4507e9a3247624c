// SPDX-License-Identifier: Apache-2.0
// The array kernels equal the scalar reference, bit for bit, for every SIMD target.
#include "dlsim/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <numeric>
#include <vector>

#include "dlsim/error.h"
#include "src/codec/dispatch.h"
#include "tests/support/boundaries.h"
#include "tests/support/formats_under_test.h"
#include "tests/support/on_target.h"

#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace dlsim {
namespace {

class ConvertOnTarget : public OnTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, ConvertOnTarget, testing::ValuesIn(SupportedSimdTargets()),
                         [](const auto& test) { return test.param; });

template <class Code>
void ExpectAsReference(const ArrayConversion& how, const std::vector<float>& values) {
  const CodecSpec spec = MakeCodecSpec(how.conversion);
  std::vector<Code> codes(values.size());
  EncodeArray(how, values, std::span<Code>(codes));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t scaled = std::bit_cast<uint32_t>(values[i] * how.scale);
    const uint32_t random = RandomBits(how.random, how.first_index + i);
    ASSERT_EQ(codes[i], Encode(spec, how.conversion.rounding, scaled, random).code)
        << i << std::hex << " bits " << std::bit_cast<uint32_t>(values[i]);
  }
}

TEST(Convert, SpansOfUnequalLengthAreAnErrorThatNamesBoth) {
  const std::vector<float> values(100);
  std::vector<uint16_t> codes(10);
  try {
    EncodeArray({{kFp16}}, values, std::span(codes));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_STREQ(error.what(), "EncodeArray: codes: wrong length, expected 100, got 10");
  }
}

TEST_P(ConvertOnTarget, EncodeEqualsTheReference) {
  for (const NamedFormat& format : FormatsUnderTest()) {
    const std::vector<float> values = AsFloats(StratifiedBits(90001));
    for (int mode = 0; mode < 6; ++mode) {
      for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
        for (const Subnormals subnormals : {Subnormals::kKeep, Subnormals::kFlushToZero}) {
          ArrayConversion how = {
              {format.format, static_cast<Rounding>(mode), overflow, subnormals}};
          how.random = {0x0123456789ABCDEF, 7};
          how.first_index = (uint64_t{1} << 36) - 64;  // the block counter passes 2^32
          SCOPED_TRACE(format.name + " mode " + std::to_string(mode));
          if (CodeBits(format.format) <= 16) {
            ASSERT_NO_FATAL_FAILURE(ExpectAsReference<uint16_t>(how, values));
          } else {
            ASSERT_NO_FATAL_FAILURE(ExpectAsReference<uint32_t>(how, values));
          }
        }
      }
    }
  }
}

TEST_P(ConvertOnTarget, ScaleMultipliesInFloat32BeforeEncoding) {
  const std::vector<float> values = AsFloats(StratifiedBits(100003));
  for (const float scale : {0.0f, 1e-30f, 3.0f, 32768.0f, 2e15f, 1e38f}) {
    ArrayConversion how = {{kCb16}};
    how.scale = scale;
    ASSERT_NO_FATAL_FAILURE(ExpectAsReference<uint16_t>(how, values)) << scale;
  }
}

TEST_P(ConvertOnTarget, DecodeEqualsTheReferenceForEveryCode) {
  for (const NamedFormat& format : FormatsUnderTest()) {
    if (CodeBits(format.format) > 16) continue;
    const CodecSpec spec = MakeCodecSpec({format.format});
    std::vector<uint16_t> codes(65536);  // bits above the code are ignored
    std::iota(codes.begin(), codes.end(), uint16_t{0});
    std::vector<float> values(codes.size());
    DecodeArray(format.format, codes, values);
    for (size_t i = 0; i < codes.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), Decode(spec, codes[i]))
          << format.name << std::hex << " code " << codes[i];
    }
  }
}

TEST_P(ConvertOnTarget, AnyLengthAndAlignment) {
  const std::vector<float> source = AsFloats(StratifiedBits(7000003));
  for (size_t length = 0; length < 100; ++length) {
    for (size_t offset = 0; offset < 3; ++offset) {
      const std::span<const float> values(source.data() + offset, length);
      const ArrayConversion how = {{kFp16, Rounding::kStochastic}};
      std::vector<uint16_t> codes(length + offset + 1, 0xABCD);
      EncodeArray(how, values, std::span<uint16_t>(codes).subspan(offset, length));
      const CodecSpec spec = MakeCodecSpec(how.conversion);
      for (size_t i = 0; i < length; ++i) {
        ASSERT_EQ(codes[offset + i],
                  EncodeWith<Rounding::kStochastic>(spec, std::bit_cast<uint32_t>(values[i]),
                                                    RandomBits(how.random, i))
                      .code);
      }
      EXPECT_EQ(codes.back(), 0xABCD) << "wrote past the end";
    }
  }
}

std::vector<Format> TunedFormats() { return {kFp16, kBf16, kCb16}; }

std::string Describe(const ArrayConversion& how) {
  const Conversion& c = how.conversion;
  return "e" + std::to_string(c.format.exponent_bits) + "m" +
         std::to_string(c.format.mantissa_bits) + " mode " +
         std::to_string(static_cast<int>(c.rounding)) + " overflow " +
         std::to_string(static_cast<int>(c.overflow)) + " subnormals " +
         std::to_string(static_cast<int>(c.subnormals)) + " scale " + std::to_string(how.scale);
}

// Calls check(conversion) for the tuned formats, deterministic modes, options and some scales.
template <class Check>
void ForEachTunedConversion(const Check& check) {
  for (const Format& format : TunedFormats()) {
    for (int mode = 0; mode < 5; ++mode) {
      for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
        for (const Subnormals subnormals : {Subnormals::kKeep, Subnormals::kFlushToZero}) {
          for (const float scale : {1.0f, 1.1f, 0x1p-20f, 3e38f}) {
            ArrayConversion how = {{format, static_cast<Rounding>(mode), overflow, subnormals}};
            how.scale = scale;
            SCOPED_TRACE(Describe(how));
            ASSERT_NO_FATAL_FAILURE(check(how));
          }
        }
      }
    }
  }
}

std::vector<uint16_t> ReferenceCodes(const ArrayConversion& how, std::span<const float> values) {
  const CodecSpec spec = MakeCodecSpec(how.conversion);
  std::vector<uint16_t> codes;
  for (const float value : values) {
    const uint32_t scaled = std::bit_cast<uint32_t>(value * how.scale);
    codes.push_back(static_cast<uint16_t>(Encode(spec, how.conversion.rounding, scaled).code));
  }
  return codes;
}

constexpr uint16_t kUntouched = 0xABCD;

// Encodes into the middle of a larger array; `offset` misaligns both arrays.
void ExpectAsReferenceAt(size_t offset, Stores stores, const ArrayConversion& how,
                         std::span<const float> values, std::span<const uint16_t> expected) {
  std::vector<float> inputs(offset, 1.0f);
  inputs.insert(inputs.end(), values.begin(), values.end());
  std::vector<uint16_t> codes(offset + values.size() + 64, kUntouched);
  EncodeArrayWith(stores, how, std::span<const float>(inputs).subspan(offset),
                  std::span<uint16_t>(codes).subspan(offset, values.size()));
  for (size_t i = 0; i < codes.size(); ++i) {
    const bool inside = i >= offset && i < offset + values.size();
    ASSERT_EQ(codes[i], inside ? expected[i - offset] : kUntouched)
        << "length " << values.size() << " offset " << offset << " index " << i << std::hex
        << " bits " << (inside ? std::bit_cast<uint32_t>(inputs[i]) : 0);
  }
}

// A part of the boundaries of a format in a scattered order, so that specials and ordinary values
// share vectors; another part at each call.
class BoundarySample {
 public:
  std::vector<float> Next(const Format& format) {
    constexpr size_t kParts = 97;
    if (all_.empty() || format != format_) all_ = AsFloats(BoundaryBits(format_ = format));
    std::vector<float> values;
    for (size_t i = 0; i < all_.size() / kParts; ++i) {
      values.push_back(all_[position_ % all_.size()]);
      position_ += 7919;
    }
    return values;
  }

 private:
  Format format_ = {};
  std::vector<float> all_;
  size_t position_ = 0;
};

TEST_P(ConvertOnTarget, TunedEncodersEqualTheReferenceAtBoundaries) {
  BoundarySample sample;
  ForEachTunedConversion([&](const ArrayConversion& how) {
    const std::vector<float> values = sample.Next(how.conversion.format);
    const std::vector<uint16_t> expected = ReferenceCodes(how, values);
    for (const Stores stores : {Stores::kCached, Stores::kNonTemporal}) {
      ASSERT_NO_FATAL_FAILURE(ExpectAsReferenceAt(3, stores, how, values, expected));
    }
  });
}

TEST_P(ConvertOnTarget, TunedEncodersTakeAnyLengthAndAlignment) {
  constexpr size_t kMaxLength = 3 * 32 + 1;
  ForEachTunedConversion([&](const ArrayConversion& how) {
    const std::vector<float> source = AsFloats(StratifiedBits(39000001));
    const std::span<const float> values = std::span(source).first(kMaxLength);
    const std::vector<uint16_t> expected = ReferenceCodes(how, values);
    for (size_t length = 0; length <= kMaxLength; ++length) {
      for (const size_t offset : {0u, 1u, 17u}) {
        const Stores stores = (length + offset) % 2 == 0 ? Stores::kCached : Stores::kNonTemporal;
        ASSERT_NO_FATAL_FAILURE(
            ExpectAsReferenceAt(offset, stores, how, values.first(length), expected));
      }
    }
  });
}

TEST_P(ConvertOnTarget, TunedDecodersTakeAnyLengthAndAlignment) {
  constexpr float kUntouchedValue = -12345.0f;
  for (const Format& format : TunedFormats()) {
    const CodecSpec spec = MakeCodecSpec({format});
    for (size_t length = 0; length <= 3 * 32 + 1; ++length) {
      for (const size_t offset : {0u, 1u, 17u}) {
        std::vector<uint16_t> codes(offset + length);
        for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i * 7919);
        std::vector<float> values(offset + length + 32, kUntouchedValue);
        const Stores stores = (length + offset) % 2 == 0 ? Stores::kCached : Stores::kNonTemporal;
        DecodeArrayWith(stores, format, std::span<const uint16_t>(codes).subspan(offset),
                        std::span(values).subspan(offset, length));
        for (size_t i = 0; i < values.size(); ++i) {
          const bool inside = i >= offset && i < offset + length;
          const uint32_t expected =
              inside ? Decode(spec, codes[i]) : std::bit_cast<uint32_t>(kUntouchedValue);
          ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), expected)
              << "length " << length << " offset " << offset << " index " << i;
        }
      }
    }
  }
}

#ifdef __SSE__
TEST_P(ConvertOnTarget, CallersFloatEnvironmentDoesNotMatter) {
  const std::vector<float> values = AsFloats(StratifiedBits(3000017));
  const uint32_t saved = _mm_getcsr();
  ForEachTunedConversion([&](const ArrayConversion& how) {
    const std::vector<uint16_t> expected = ReferenceCodes(how, values);
    const std::vector<uint16_t>& inputs = expected;
    const CodecSpec spec = MakeCodecSpec(how.conversion);
    for (const uint32_t rounding : {_MM_ROUND_NEAREST, _MM_ROUND_UP, _MM_ROUND_TOWARD_ZERO}) {
      const uint32_t hostile = 0x9FC0 | rounding;  // flush to zero, denormals are zeros
      std::vector<uint16_t> codes(values.size());
      std::vector<float> decoded(values.size());
      _mm_setcsr(hostile);
      EncodeArray(how, values, std::span<uint16_t>(codes));
      DecodeArray(how.conversion.format, inputs, decoded);
      const uint32_t after = _mm_getcsr();
      _mm_setcsr(saved);
      ASSERT_EQ(codes, expected);
      ASSERT_EQ(after & ~0x3Fu, hostile) << "the environment was not restored";
      for (size_t i = 0; i < inputs.size(); ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(decoded[i]), Decode(spec, inputs[i]));
      }
    }
  });
}
#endif

TEST(CacheSize, IsPlausible) {
  EXPECT_GE(LastLevelCacheBytes(), size_t{1} << 18);
  EXPECT_LE(LastLevelCacheBytes(), size_t{1} << 33);
}

TEST(Simd, RefusesATargetThatTheMachineLacks) {
  EXPECT_THROW(UseSimdTarget("AVX9"), Error);
  EXPECT_EQ(CurrentSimdTarget(), SupportedSimdTargets().front());
}

}  // namespace
}  // namespace dlsim
