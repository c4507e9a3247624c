// SPDX-License-Identifier: Apache-2.0
// The short forms of measuring equal the definition for all 2^32 inputs of the tuned formats.
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cstdint>

#include "measured_elements.h"
#include "parallel.h"

namespace dlsim::gpu {
namespace {

TEST(MeasuredElements, EqualTheDefinitionForAllInputs) {
  for (const Format& format : {kFp16, kBf16, kCb16}) {
    const KernelQuestion question = QuestionOf({format}, 1.0f);
    std::atomic<uint64_t> plain = 0, by_floats = 0, differing = 0;
    ParallelFor(1 << 12, [&](size_t part) {
      uint64_t plain_of_part = 0, by_floats_of_part = 0;
      for (uint32_t i = 0; i < 1u << 20; ++i) {
        const float value = std::bit_cast<float>(static_cast<uint32_t>(part) << 20 | i);
        const Outcome one = MeasureOne(question, value);
        const Outcome other = MeasureOneByFloats(question, value);
        plain_of_part += one == Outcome::kShort ? 1 : 0;
        by_floats_of_part += other == Outcome::kShort ? 1 : 0;
        if (one == Outcome::kDiffers || other == Outcome::kDiffers) ++differing;
      }
      plain += plain_of_part;
      by_floats += by_floats_of_part;
    });
    EXPECT_EQ(differing, 0u);
    EXPECT_GT(plain, uint64_t{1} << 31);
    if (format != kBf16) {
      EXPECT_EQ(by_floats, uint64_t{1} << 32);
    }
  }
}

}  // namespace
}  // namespace dlsim::gpu
