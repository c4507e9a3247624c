// SPDX-License-Identifier: Apache-2.0
// The device's functions for single elements, called on the host, equal the scalar reference: for
// each tuned format and deterministic rounding mode over all 2^32 inputs with
// DLSIM_EXHAUSTIVE=full, over a part without it, under the other policies, and with stochastic
// rounding.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "gpu/encode/convert_body.h"
#include "src/base/parallel.h"
#include "tests/gpu/sweep_stride.h"

namespace dlsim::gpu {
namespace {

constexpr uint64_t kAllInputs = uint64_t{1} << 32;

template <Format kFormatValue, Rounding kRoundingValue>
struct Kernel {
  static constexpr Format kFormat = kFormatValue;
  static constexpr Rounding kRounding = kRoundingValue;
};

// Compares a group; returns whether all is equal.
template <class Kernel>
bool IsAsReference(const Conversion& conversion, uint64_t index, const uint32_t (&bits)[kGroup]) {
  constexpr RandomStream kRandom = {0x0123456789ABCDEF, 7};
  const auto codec = MakeTunedCodec<Kernel::kFormat>(conversion);
  const CodecSpec spec = MakeCodecSpec(conversion);
  uint32_t codes[kGroup];
  EncodeGroup<Kernel::kRounding>(codec, kRandom, index, bits, codes);
  bool equal = true;
  for (uint32_t i = 0; i < kGroup; ++i) {
    constexpr bool kIsRandom = Kernel::kRounding == Rounding::kStochastic;
    const uint32_t word = kIsRandom ? RandomBits(kRandom, index + i) : 0;
    equal &= codes[i] == EncodeWith<Kernel::kRounding>(spec, bits[i], word).code;
  }
  return equal;
}

// Compares one input out of each `stride`, another one in each stride.
template <class Kernel>
void ExpectAsReference(Overflow overflow, Subnormals subnormals, uint32_t stride) {
  const Conversion conversion = {Kernel::kFormat, Kernel::kRounding, overflow, subnormals};
  const uint64_t count = kAllInputs / stride / kGroup * kGroup;
  std::atomic<uint64_t> groups = 0, wrong_groups = 0, wrong_input = 0;
  ParallelForBlocks(count, [&](size_t begin, size_t length) {
    for (size_t i = begin; i < begin + length; i += kGroup) {
      uint32_t bits[kGroup];
      for (uint32_t j = 0; j < kGroup; ++j) {
        const uint32_t input = static_cast<uint32_t>((i + j) * stride);
        bits[j] = input + (input / stride * 0x85EBCA6B >> 16) % stride;
      }
      if (IsAsReference<Kernel>(conversion, i, bits)) continue;
      ++wrong_groups;
      wrong_input = bits[0];
    }
    groups += length / kGroup;
  });
  EXPECT_EQ(groups * kGroup, count);
  EXPECT_EQ(wrong_groups, 0u) << std::hex << "one of them is of " << wrong_input << ", policies "
                              << static_cast<int>(overflow) << static_cast<int>(subnormals);
}

template <class Kernel>
class EncodeElementSweep : public testing::Test {};

template <Format kFormat>
using KernelsOf = testing::Types<
    Kernel<kFormat, Rounding::kNearestEven>, Kernel<kFormat, Rounding::kTowardZero>,
    Kernel<kFormat, Rounding::kNearestAway>, Kernel<kFormat, Rounding::kTowardPositive>,
    Kernel<kFormat, Rounding::kTowardNegative>, Kernel<kFormat, Rounding::kStochastic>>;

// A test for each rounding mode, named by it.
struct KernelNames {
  template <class Kernel>
  static std::string GetName(int) {
    constexpr const char* kNames[] = {"rne", "rtz", "rna", "ru", "rd", "sr"};
    return kNames[static_cast<int>(Kernel::kRounding)];
  }
};

TYPED_TEST_SUITE_P(EncodeElementSweep);

TYPED_TEST_P(EncodeElementSweep, EveryInputAsReference) {
  constexpr bool kIsRandom = TypeParam::kRounding == Rounding::kStochastic;
  const uint32_t stride = SweepStride();
  ExpectAsReference<TypeParam>(Overflow::kInfinity, Subnormals::kKeep, kIsRandom ? 61 : stride);
  for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
    for (const Subnormals subnormals : {Subnormals::kKeep, Subnormals::kFlushToZero}) {
      ExpectAsReference<TypeParam>(overflow, subnormals, kIsRandom ? 509 : 31);
    }
  }
}

REGISTER_TYPED_TEST_SUITE_P(EncodeElementSweep, EveryInputAsReference);
INSTANTIATE_TYPED_TEST_SUITE_P(Fp16, EncodeElementSweep, KernelsOf<kFp16>, KernelNames);
INSTANTIATE_TYPED_TEST_SUITE_P(Bf16, EncodeElementSweep, KernelsOf<kBf16>, KernelNames);
INSTANTIATE_TYPED_TEST_SUITE_P(Cb16, EncodeElementSweep, KernelsOf<kCb16>, KernelNames);

}  // namespace
}  // namespace dlsim::gpu
