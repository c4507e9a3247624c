// SPDX-License-Identifier: Apache-2.0
// WaveCounter on an emulated device: pieces of many tensors, of all types, at any alignment.
#include "gpu/count/wave_counter.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "counted_waves.h"
#include "emulation.h"
#include "histogram_sums.h"

namespace dlsim::gpu {
namespace {

using emulation::ThreadOrder;

class WaveCounterGpu : public testing::TestWithParam<ThreadOrder> {
 protected:
  void SetUp() override {
    emulation::Reset();
    emulation::SetThreadOrder(GetParam(), 5);
  }
};
INSTANTIATE_TEST_SUITE_P(Orders, WaveCounterGpu,
                         testing::Values(ThreadOrder::kAscending, ThreadOrder::kDescending,
                                         ThreadOrder::kShuffled));

// Arrays that are aligned to their elements only.
TEST_P(WaveCounterGpu, CountsAtAnyAlignment) {
  const std::vector<float> values = KindsOfValues(10001)[3];
  Wave wave;
  wave.Add(0, values);
  wave.pieces[0].values += sizeof(float);
  wave.pieces[0].count -= 1;
  WaveCounter counter(LadderEdges(), 1);
  const OwnedStream stream;
  wave.Launch(counter, stream);
  Wait(stream);
  std::vector<HistogramSums> sums(1);
  counter.Collect(sums);
  ExpectEqual(sums[0], CountByDefinition(std::span(values).subspan(1), LadderEdges()));
}

TEST_P(WaveCounterGpu, CountsManyTensorsOfMixedSizesInSeveralLaunches) {
  ExpectTensorsCounted(LadderEdges(), 24, 40);
}

// So many bins that only one table fits at once.
TEST(WaveCounterGpuTables, AreUsedAgainForTheNextTensor) {
  emulation::Reset();
  std::vector<uint32_t> edges;
  for (uint32_t i = 0; i < 550000; ++i) edges.push_back((90u << 23) + i * 601);
  ExpectTensorsCounted(HistogramEdges(edges), 2, 4);
}

TEST_P(WaveCounterGpu, ReadsAllTypesAndScales) {
  std::mt19937 random(9);
  std::vector<uint16_t> halves(5000);
  for (uint16_t& half : halves) half = static_cast<uint16_t>(random());
  std::vector<double> doubles(5000);
  for (double& x : doubles)
    x = std::ldexp(static_cast<double>(random()), -static_cast<int>(random() % 190));
  Wave wave;
  wave.Add(0, DType::kF16, halves.data(), halves.size(), 0.125f);
  wave.Add(1, DType::kBF16, halves.data(), halves.size());
  wave.Add(2, DType::kF64, doubles.data(), doubles.size(), 3e-5f);
  WaveCounter counter(LadderEdges(), wave.pieces.size());
  const OwnedStream stream;
  wave.Launch(counter, stream);
  Wait(stream);
  std::vector<HistogramSums> sums(3);
  counter.Collect(sums);
  std::vector<float> as_floats[3];
  constexpr CodecSpec kHalf = MakeCodecSpec({kFp16}), kBfloat = MakeCodecSpec({kBf16});
  for (const uint16_t half : halves) {
    as_floats[0].push_back(std::bit_cast<float>(Decode(kHalf, half)) * 0.125f);
    as_floats[1].push_back(std::bit_cast<float>(Decode(kBfloat, half)));
  }
  for (const double x : doubles) as_floats[2].push_back(static_cast<float>(x) * 3e-5f);
  for (size_t t = 0; t < 3; ++t) {
    ASSERT_NO_FATAL_FAILURE(ExpectEqual(sums[t], CountOnCpu(as_floats[t], LadderEdges())));
  }
}

}  // namespace
}  // namespace dlsim::gpu
