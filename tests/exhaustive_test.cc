// SPDX-License-Identifier: Apache-2.0
// All 2^32 inputs: hardware against the scalar reference, and every SIMD target against it.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "boundaries.h"
#include "dlsim/codec.h"
#include "dlsim/convert.h"
#include "dlsim/simd.h"
#include "double_oracle.h"
#include "formats_under_test.h"
#include "parallel.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace dlsim {
namespace {

constexpr size_t kBlockInputs = size_t{1} << 22;
constexpr uint64_t kAllInputs = uint64_t{1} << 32;

std::vector<NamedFormat> TunedFormats() {
  return {{"fp16", kFp16}, {"bf16", kBf16}, {"cb16", kCb16}};
}

// Calls check(block of float32 inputs) for all 2^32 bit patterns, in order.
void ForEachBlock(const std::function<void(const std::vector<float>&, uint32_t)>& check) {
  std::vector<float> inputs(kBlockInputs);
  for (uint64_t first = 0; first < kAllInputs; first += kBlockInputs) {
    for (size_t i = 0; i < kBlockInputs; ++i) {
      inputs[i] = std::bit_cast<float>(static_cast<uint32_t>(first + i));
    }
    ASSERT_NO_FATAL_FAILURE(check(inputs, static_cast<uint32_t>(first)));
  }
}

void EncodeByReference(const ArrayConversion& how, const std::vector<float>& inputs,
                       std::vector<uint16_t>& codes) {
  const CodecSpec spec = MakeCodecSpec(how.conversion);
  const bool stochastic = how.conversion.rounding == Rounding::kStochastic;
  ParallelForBlocks(inputs.size(), [&](size_t begin, size_t count) {
    for (size_t i = begin; i < begin + count; ++i) {
      const uint32_t random = stochastic ? RandomBits(how.random, i) : 0;
      codes[i] = static_cast<uint16_t>(
          Encode(spec, how.conversion.rounding, std::bit_cast<uint32_t>(inputs[i]), random).code);
    }
  });
}

// Compares arrays of codes; on a difference names the first.
void ExpectSameCodes(const std::vector<float>& inputs, const std::vector<uint16_t>& expected,
                     const std::vector<uint16_t>& actual, const std::string& what) {
  if (std::memcmp(expected.data(), actual.data(), expected.size() * sizeof(uint16_t)) == 0) return;
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(actual[i], expected[i])
        << what << std::hex << " input " << std::bit_cast<uint32_t>(inputs[i]);
  }
}

class Exhaustive : public testing::TestWithParam<NamedFormat> {
 protected:
  void TearDown() override { UseSimdTarget(""); }
};
INSTANTIATE_TEST_SUITE_P(Formats, Exhaustive, testing::ValuesIn(TunedFormats()),
                         [](const auto& test) { return test.param.name; });

void ExpectAllTargetsAsReference(const ArrayConversion& how, const std::vector<float>& inputs) {
  std::vector<uint16_t> expected(inputs.size()), codes(inputs.size());
  EncodeByReference(how, inputs, expected);
  for (const std::string& target : SupportedSimdTargets()) {
    UseSimdTarget(target);
    EncodeArray(how, inputs, std::span<uint16_t>(codes));
    ASSERT_NO_FATAL_FAILURE(ExpectSameCodes(inputs, expected, codes, target));
  }
}

TEST_P(Exhaustive, NearestEvenEqualsTheReferenceOnEveryTarget) {
  ForEachBlock([&](const std::vector<float>& inputs, uint32_t) {
    ExpectAllTargetsAsReference({{GetParam().format}}, inputs);
  });
}

TEST_P(Exhaustive, OtherModesEqualTheReferenceOnADenseSample) {
  std::vector<float> inputs;
  for (const uint32_t bits : StratifiedBits(251)) inputs.push_back(std::bit_cast<float>(bits));
  for (int mode = 1; mode < 6; ++mode) {
    SCOPED_TRACE(mode);
    const ArrayConversion how = {{GetParam().format, static_cast<Rounding>(mode)}, 1.0f, {77, 0}};
    ASSERT_NO_FATAL_FAILURE(ExpectAllTargetsAsReference(how, inputs));
  }
}

TEST_P(Exhaustive, ReferenceEqualsDoubleArithmeticOnADenseSample) {
  const std::vector<uint32_t> inputs = StratifiedBits(251);
  for (const Rounding rounding :
       {Rounding::kNearestEven, Rounding::kTowardZero, Rounding::kNearestAway,
        Rounding::kTowardPositive, Rounding::kTowardNegative}) {
    const Conversion conversion = {GetParam().format, rounding};
    const CodecSpec spec = MakeCodecSpec(conversion);
    for (const uint32_t bits : inputs) {
      const float value = std::bit_cast<float>(bits);
      if (!std::isfinite(value)) continue;
      const double decoded = OracleDecode(conversion.format, Encode(spec, rounding, bits).code);
      ASSERT_EQ(decoded, OracleRound(conversion, value)) << std::hexfloat << value;
    }
  }
}

#ifdef __x86_64__
__attribute__((target("avx,f16c"))) void EncodeByF16c(const float* inputs, size_t count,
                                                      uint16_t* codes) {
  for (size_t i = 0; i < count; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(inputs + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), halves);
  }
}

// Clang's __builtin_cpu_supports does not know F16C; AVX tells that the system saves the registers.
bool HasF16c() {
  unsigned eax, ebx, ecx = 0, edx;
  return __builtin_cpu_supports("avx") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 &&
         (ecx & bit_F16C) != 0;
}

TEST(Hardware, F16cEqualsTheReferenceOnAllInputs) {
  if (!HasF16c()) GTEST_SKIP() << "this CPU has no F16C";
  std::vector<uint16_t> expected(kBlockInputs), codes(kBlockInputs);
  ForEachBlock([&](const std::vector<float>& inputs, uint32_t) {
    EncodeByReference({{kFp16}}, inputs, expected);
    EncodeByF16c(inputs.data(), inputs.size(), codes.data());
    ExpectSameCodes(inputs, expected, codes, "F16C");
  });
}
#else
TEST(Hardware, F16cEqualsTheReferenceOnAllInputs) { GTEST_SKIP() << "not an x86-64 machine"; }
#endif

}  // namespace
}  // namespace dlsim
