// SPDX-License-Identifier: Apache-2.0
// WaveCounter on an emulated device: pieces of many tensors, of all types, at any alignment.
#include "gpu/count/wave_counter.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "emulation.h"
#include "src/histogram/histogram_sums.h"
#include "tests/gpu/counted_waves.h"
#include "tests/gpu/device_arrays.h"

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

// Enough bins that only one table fits at once.
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

// Tensors of all types, scales, alignments and sizes, and what the CPU makes of their values.
struct MixedTensors {
  MixedTensors() {
    for (const size_t count : {3u, 5001u}) {
      for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64}) {
        Add(dtype, count);
        Add(dtype, count, 1024.0f, 1);
        Add(dtype, count, 0.3f, 3);
      }
    }
    Add(DType::kBF16, 70001, 8.0f);
    Add(DType::kF32, 131072);
    Add(DType::kF16, 65537, 1.0f, 1);
  }

  void Add(DType dtype, size_t count, float grad_scale = 1.0f, size_t offset = 0) {
    const auto tensor = static_cast<uint32_t>(values.size());
    const std::vector<std::byte> elements = Elements(dtype, count, tensor);
    wave.Add(tensor, dtype, elements.data(), count, 1.0f / grad_scale, offset);
    values.push_back(FloatsOf(dtype, grad_scale, elements));
  }

  Wave wave;
  std::vector<std::vector<float>> values;
};

TEST_P(WaveCounterGpu, CountsTensorsOfAllKindsAgainAndAgain) {
  MixedTensors tensors;
  const HistogramEdges few({0x3F800001u, 0x40490FDBu, 0x12345678u});  // which do not repeat
  const OwnedStream stream;
  for (const HistogramEdges* edges : {&LadderEdges(), &few}) {
    WaveCounter counter(*edges, tensors.wave.pieces.size());
    std::vector<HistogramSums> sums(tensors.values.size());
    const int launches = edges == &few ? 2 : 1;
    for (int i = 0; i < launches; ++i) {
      tensors.wave.Launch(counter, stream);
      Wait(stream);
      counter.Collect(sums);
    }
    for (size_t t = 0; t < sums.size(); ++t) {
      HistogramSums expected;
      for (int i = 0; i < launches; ++i) {
        expected.Merge(CountByDefinition(tensors.values[t], *edges));
      }
      ASSERT_NO_FATAL_FAILURE(ExpectEqual(sums[t], expected)) << "tensor " << t;
    }
  }
}

}  // namespace
}  // namespace dlsim::gpu
