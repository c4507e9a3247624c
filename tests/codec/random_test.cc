// SPDX-License-Identifier: Apache-2.0
// The random bits that the kernels make equal those of the scalar reference, on every SIMD target.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "dlsim/convert.h"
#include "tests/support/on_target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/codec/random_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "src/codec/dispatch.h"
#include "src/codec/encode_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

void FillPlaneOf(const RandomStream& random, uint64_t first, uint32_t plane, uint16_t* halves) {
  std::copy_n(PlaneOf(random, first, plane).of, kRandomRun, halves);
}

// Returns the block of a counter, computed as number `place` of those computed together.
PhiloxBlock BlockOf(const PhiloxBlock& counter, uint64_t key, size_t place) {
#if HWY_TARGET == HWY_SCALAR
  (void)place;
  return Philox4x32(counter, key);
#else
  const PhiloxPlane philox({key, counter.word[2]}, counter.word[1], counter.word[3]);
  auto blocks = hn::Iota(U64Tag(), counter.word[0] - place);
  PhiloxHalves halves[kPhiloxVectors];
  philox.Fill(blocks, halves);
  const size_t lanes = hn::Lanes(U64Tag()), vector = place / lanes, lane = place % lanes;
  uint64_t first[hn::MaxLanes(U64Tag())], last[hn::MaxLanes(U64Tag())];
  hn::StoreU(halves[vector].first, U64Tag(), first);
  hn::StoreU(halves[vector].last, U64Tag(), last);
  return {{static_cast<uint32_t>(first[lane]), static_cast<uint32_t>(first[lane] >> 32),
           static_cast<uint32_t>(last[lane]), static_cast<uint32_t>(last[lane] >> 32)}};
#endif
}

size_t BlocksTogether() {
#if HWY_TARGET == HWY_SCALAR
  return 1;
#else
  return PhiloxElements() / kElementsPerPhiloxBlock;
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dlsim {
namespace {

DLSIM_EXPORT(FillPlaneOf);
DLSIM_EXPORT(BlockOf);
DLSIM_EXPORT(BlocksTogether);

constexpr size_t kRun = HWY_NAMESPACE::kRandomRun;

class RandomOnTarget : public OnTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, RandomOnTarget, testing::ValuesIn(SupportedSimdTargets()),
                         [](const auto& test) { return test.param; });

TEST_P(RandomOnTarget, MatchesThePublishedKnownAnswers) {
  struct Case {
    PhiloxBlock counter;
    uint64_t key;
    uint32_t expected[4];
  };
  // From kat_vectors of Random123, the reference implementation of Salmon et al.
  const Case cases[] = {
      {{{0, 0, 0, 0}}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{{~0u, ~0u, ~0u, ~0u}}, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
       0x299f31d0a4093822,
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Case& c : cases) {
    for (size_t place = 0; place < DLSIM_DISPATCH(BlocksTogether)(); ++place) {
      const auto block = DLSIM_DISPATCH(BlockOf)(c.counter, c.key, place);
      for (int i = 0; i < 4; ++i) EXPECT_EQ(block.word[i], c.expected[i]) << place;
    }
  }
}

TEST_P(RandomOnTarget, RunsEqualTheReference) {
  for (const uint64_t first : {uint64_t{0}, uint64_t{8}, uint64_t{1} << 34, (uint64_t{1} << 35) - 8,
                               (uint64_t{3} << 35) - 264}) {
    const RandomStream random = {0xFEDCBA9876543210 + first, static_cast<uint32_t>(first >> 3)};
    uint16_t high[kRun], low[kRun];
    DLSIM_DISPATCH(FillPlaneOf)(random, first, 0, high);
    DLSIM_DISPATCH(FillPlaneOf)(random, first, 1, low);
    for (size_t i = 0; i < kRun; ++i) {
      ASSERT_EQ((uint32_t{high[i]} << 16) | low[i], RandomBits(random, first + i)) << i;
    }
  }
}

TEST(Philox, ElementsTakeTheHalvesOfTheirBlockInOrder) {
  const RandomStream random = {42, 3};
  const PhiloxBlock plane0 = Philox4x32({{5, 0, 3, 0}}, random.seed);
  const PhiloxBlock plane1 = Philox4x32({{5, 0, 3, 1}}, random.seed);
  EXPECT_EQ(RandomBits(random, 40), (plane0.word[0] << 16) | (plane1.word[0] & 0xFFFF));
  EXPECT_EQ(RandomBits(random, 47), (plane0.word[3] & 0xFFFF0000) | (plane1.word[3] >> 16));
}

}  // namespace
}  // namespace dlsim
#endif  // HWY_ONCE
