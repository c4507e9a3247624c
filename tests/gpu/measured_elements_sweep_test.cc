// SPDX-License-Identifier: Apache-2.0
// The short forms of measuring equal the definition for the tuned formats: for all 2^32 inputs with
// DLSIM_EXHAUSTIVE=full, for a part without it.
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cstdint>

#include "src/base/parallel.h"
#include "tests/gpu/measured_elements.h"
#include "tests/gpu/sweep_stride.h"

namespace dlsim::gpu {
namespace {

TEST(MeasuredElements, EqualTheDefinitionForAllInputs) {
  const uint32_t stride = SweepStride();
  for (const Format& format : {kFp16, kBf16, kCb16}) {
    const KernelQuestion question = QuestionOf({format}, 1.0f);
    std::atomic<uint64_t> inputs = 0, plain = 0, by_floats = 0, differing = 0;
    ParallelFor(1 << 12, [&](size_t part) {
      uint64_t inputs_of_part = 0, plain_of_part = 0, by_floats_of_part = 0;
      for (uint32_t i = static_cast<uint32_t>(part) % stride; i < 1u << 20; i += stride) {
        ++inputs_of_part;
        const float value = std::bit_cast<float>(static_cast<uint32_t>(part) << 20 | i);
        const Outcome one = MeasureOne(question, value);
        const Outcome other = MeasureOneByFloats(question, value);
        plain_of_part += one == Outcome::kShort ? 1 : 0;
        by_floats_of_part += other == Outcome::kShort ? 1 : 0;
        if (one == Outcome::kDiffers || other == Outcome::kDiffers) ++differing;
      }
      inputs += inputs_of_part;
      plain += plain_of_part;
      by_floats += by_floats_of_part;
    });
    EXPECT_EQ(differing, 0u);
    EXPECT_GE(inputs + (1 << 12), (uint64_t{1} << 32) / stride);
    EXPECT_GT(plain, inputs / 2);
    if (format != kBf16) {
      EXPECT_EQ(by_floats, inputs);
    }
  }
}

}  // namespace
}  // namespace dlsim::gpu
