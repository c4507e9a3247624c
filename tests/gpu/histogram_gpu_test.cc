// SPDX-License-Identifier: Apache-2.0
// The counting kernels on an emulated device against HistogramCounter.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "device_buffer.h"
#include "dlsim/ladder.h"
#include "emulation.h"
#include "wave_counter.h"

namespace dlsim::gpu {
namespace {

using emulation::ThreadOrder;

constexpr uint32_t kMostElements = 65536;

bool operator==(const HistogramSums::Bin& a, const HistogramSums::Bin& b) {
  return a.bin == b.bin && a.count == b.count && a.significands == b.significands &&
         a.squares == b.squares;
}

void ExpectEqual(const HistogramSums& actual, const HistogramSums& expected) {
  ASSERT_EQ(actual.elements, expected.elements);
  ASSERT_EQ(actual.zeros, expected.zeros);
  ASSERT_EQ(actual.nan, expected.nan);
  ASSERT_EQ(actual.inf, expected.inf);
  for (size_t sign = 0; sign < 2; ++sign) {
    ASSERT_EQ(actual.signs[sign].largest, expected.signs[sign].largest);
    ASSERT_EQ(actual.signs[sign].bins.size(), expected.signs[sign].bins.size());
    for (size_t i = 0; i < expected.signs[sign].bins.size(); ++i) {
      ASSERT_TRUE(actual.signs[sign].bins[i] == expected.signs[sign].bins[i])
          << "bin " << expected.signs[sign].bins[i].bin;
    }
  }
}

// Arrays of several types on the device, cut into pieces.
struct Wave {
  std::vector<DeviceBuffer<std::byte>> memory;
  std::vector<Piece> pieces;
  DeviceBuffer<Piece> on_device;

  void Add(uint32_t tensor, DType dtype, const void* values, uint64_t count,
           float inverse_grad_scale = 1.0f) {
    const size_t bytes = DTypeSize(dtype);
    memory.emplace_back(count * bytes);
    CheckCuda(cudaMemcpy(memory.back().data(), values, count * bytes, cudaMemcpyHostToDevice), "");
    for (uint64_t first = 0; first < count; first += kMostElements) {
      Piece& piece = pieces.emplace_back();
      piece.values = memory.back().data() + first * bytes;
      piece.first_index = first;
      piece.count = static_cast<uint32_t>(std::min<uint64_t>(kMostElements, count - first));
      piece.tensor = tensor;
      piece.inverse_grad_scale = inverse_grad_scale;
      piece.dtype = dtype;
    }
  }
  void Add(uint32_t tensor, std::span<const float> values) {
    Add(tensor, DType::kF32, values.data(), values.size());
  }

  void Launch(WaveCounter& counter, const OwnedStream& stream) {
    on_device = DeviceBuffer<Piece>(pieces.size());
    CheckCuda(cudaMemcpy(on_device.data(), pieces.data(), pieces.size() * sizeof(Piece),
                         cudaMemcpyHostToDevice),
              "");
    counter.Launch(on_device.data(), pieces, stream.get());
  }
};

void Wait(const OwnedStream& stream) { CheckCuda(cudaStreamSynchronize(stream.get()), ""); }

HistogramSums CountOnCpu(std::span<const float> values, const HistogramEdges& edges) {
  HistogramCounter counter(edges);
  counter.Add(values);
  return counter.TakeSums();
}

HistogramSums CountByDefinition(std::span<const float> values, const HistogramEdges& edges) {
  HistogramCounter counter(edges);
  counter.AddReference(values);
  return counter.TakeSums();
}

// Counts one array and compares.
void ExpectCountedAsOnCpu(std::span<const float> values, const HistogramEdges& edges) {
  Wave wave;
  wave.Add(0, values);
  WaveCounter counter(edges, wave.pieces.size());
  const OwnedStream stream;
  wave.Launch(counter, stream);
  Wait(stream);
  std::vector<HistogramSums> sums(1);
  counter.Collect(sums);
  ExpectEqual(sums[0], CountOnCpu(values, edges));
  ExpectEqual(sums[0], CountByDefinition(values, edges));
}

const HistogramEdges& LadderEdges() {
  static const HistogramEdges edges = EdgesOf(DefaultLadder());
  return edges;
}

// Edges that repeat from binade to binade, few, many, and none beyond the powers of two.
std::vector<HistogramEdges> SetsOfEdges() {
  std::mt19937 random(3);
  std::vector<HistogramEdges> sets = {LadderEdges(), HistogramEdges({})};
  for (const size_t count : {1u, 30u, 1000u}) {
    std::vector<uint32_t> edges;
    while (edges.size() < count) {
      edges.push_back(static_cast<uint32_t>((127u << 23) - random() % (20u << 23)));
    }
    sets.push_back(HistogramEdges(edges));
  }
  std::vector<uint32_t> ends;
  for (uint32_t binade = 90; binade < 140; ++binade) {
    ends.push_back(binade << 23 | 1);
    ends.push_back(binade << 23 | 0x400000);
    ends.push_back((binade + 1) << 23 | codec::kMantissaMask);
  }
  sets.push_back(HistogramEdges(ends));
  return sets;
}

// The values that profiles are about, and those that kernels tell apart.
std::vector<std::vector<float>> KindsOfValues(size_t count) {
  std::mt19937 random(20);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> log2_spread(-36.0f, 3.0f);
  std::vector<std::vector<float>> kinds(10);
  const auto bits_of = [](uint32_t bits) { return std::bit_cast<float>(bits); };
  for (size_t i = 0; i < count; ++i) {
    const float x = normal(random);
    const uint32_t bits = static_cast<uint32_t>(random());
    kinds[0].push_back(x);
    kinds[1].push_back(x * std::exp2(log2_spread(random)));
    kinds[2].push_back(bits % 7 == 0 ? x : -0.0f);
    kinds[3].push_back(bits % 500 == 0   ? std::numeric_limits<float>::quiet_NaN()
                       : bits % 700 == 0 ? -std::numeric_limits<float>::infinity()
                                         : x);
    kinds[4].push_back(bits_of(bits & 0x80FFFFFF));  // half of them subnormal
    kinds[5].push_back(bits_of((bits & 0x87800000) | 0x35E5C6 | bits % 4));
    kinds[6].push_back(std::ldexp(x, 90));
    kinds[7].push_back(bits_of(bits));
    kinds[8].push_back(bits_of(2 * i < count ? 0x7F7FFFFFu : 0xFF7FFFFFu));
    kinds[9].push_back(-std::abs(x) * 1e-30f);
  }
  return kinds;
}

class HistogramGpu : public testing::TestWithParam<ThreadOrder> {
 protected:
  void SetUp() override {
    emulation::Reset();
    emulation::SetThreadOrder(GetParam(), 5);
  }
};
INSTANTIATE_TEST_SUITE_P(Orders, HistogramGpu,
                         testing::Values(ThreadOrder::kAscending, ThreadOrder::kDescending,
                                         ThreadOrder::kShuffled));

TEST_P(HistogramGpu, CountsAsTheCpuDoes) {
  for (const HistogramEdges& edges : SetsOfEdges()) {
    ASSERT_NO_FATAL_FAILURE(ExpectCountedAsOnCpu(KindsOfValues(3000)[7], edges));
  }
}

TEST_P(HistogramGpu, CountsLongArraysAsTheCpuDoes) {
  ASSERT_NO_FATAL_FAILURE(ExpectCountedAsOnCpu(KindsOfValues(75001)[1], LadderEdges()));
}

TEST(HistogramGpuKinds, AreCountedAsOnTheCpu) {
  emulation::Reset();
  for (const std::vector<float>& values : KindsOfValues(9001)) {
    ASSERT_NO_FATAL_FAILURE(ExpectCountedAsOnCpu(values, LadderEdges()));
  }
}

TEST(HistogramGpuEdges, HaveNeighboursThatAreCountedAsOnTheCpu) {
  emulation::Reset();
  for (const HistogramEdges& edges : SetsOfEdges()) {
    std::vector<float> values;
    for (const uint32_t edge : edges.bits()) {
      for (const uint32_t bits : {edge - 1, edge, edge + 1}) {
        values.push_back(std::bit_cast<float>(bits));
        values.push_back(-values.back());
      }
    }
    ASSERT_NO_FATAL_FAILURE(ExpectCountedAsOnCpu(values, edges));
  }
}

// More of one bin than small counters hold: of a slot, with the largest significand, of a power of
// two, of no bin at all.
TEST_P(HistogramGpu, CountsOneValueManyTimes) {
  for (const uint32_t bits : {0xBF5DCEB6u, 0x3D7FFFFFu, 0x3F800000u, 1u, 0u}) {
    ASSERT_NO_FATAL_FAILURE(
        ExpectCountedAsOnCpu(std::vector<float>(70000, std::bit_cast<float>(bits)), LadderEdges()));
  }
}

TEST(HistogramGpuLong, CountsOneValueAMillionTimes) {
  emulation::Reset();
  ASSERT_NO_FATAL_FAILURE(ExpectCountedAsOnCpu(
      std::vector<float>(1000000, std::bit_cast<float>(0xBF5DCEB6u)), LadderEdges()));
}

// Some cells overflow, after others have values that wait from piece to piece.
TEST_P(HistogramGpu, CountsValuesThatAreMuchAlikeAfterOthers) {
  std::vector<float> values = KindsOfValues(70000)[1];
  for (size_t i = 66000; i < values.size(); ++i) values[i] = 0.8f;
  std::mt19937 random(2);
  while (values.size() < 140000) {
    values.push_back(std::ldexp(static_cast<float>(random()), -32));  // from 0 to 1
  }
  ASSERT_NO_FATAL_FAILURE(ExpectCountedAsOnCpu(values, LadderEdges()));
}

// Binades far apart, one after the other.
TEST(HistogramGpuMagnitudes, MayDifferFromPieceToPiece) {
  emulation::Reset();
  std::vector<float> values;
  for (const int exponent : {0, 100, 20, -100, -140, 60, 0}) {
    const std::vector<float> more = KindsOfValues(kMostElements)[0];
    for (size_t i = 0; i < 66000 && i < more.size(); ++i) {
      values.push_back(std::ldexp(more[i], exponent));
    }
  }
  ASSERT_NO_FATAL_FAILURE(ExpectCountedAsOnCpu(values, LadderEdges()));
}

// Arrays that are aligned to their elements only.
TEST_P(HistogramGpu, CountsAtAnyAlignment) {
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

// Counts tensors of mixed sizes in two launches and compares.
void ExpectTensorsCounted(const HistogramEdges& edges, uint32_t tensors, size_t most_pieces) {
  const std::vector<float> values = KindsOfValues(200000)[1];
  WaveCounter counter(edges, most_pieces);
  const OwnedStream stream;
  std::vector<HistogramSums> sums(tensors), expected(tensors);
  Wave first, second;
  std::mt19937 random(1);
  for (uint32_t tensor = 0; tensor < tensors; tensor += 1 + tensor % 3) {
    const size_t count = tensor % 5 == 0 ? 0 : tensor == 7 ? 200000 : random() % 400;
    const std::span<const float> part = std::span(values).subspan(values.size() - count);
    first.Add(tensor, part);
    second.Add(tensor, part.first(count / 2));
    expected[tensor].Merge(CountByDefinition(part, edges));
    expected[tensor].Merge(CountByDefinition(part.first(count / 2), edges));
  }
  first.Launch(counter, stream);
  second.Launch(counter, stream);
  Wait(stream);
  for (int collections = 0; collections < 2; ++collections) {  // the second finds nothing left
    counter.Collect(sums);
    for (size_t tensor = 0; tensor < tensors; ++tensor) {
      ASSERT_NO_FATAL_FAILURE(ExpectEqual(sums[tensor], expected[tensor])) << tensor;
    }
  }
}

TEST_P(HistogramGpu, CountsManyTensorsOfMixedSizesInSeveralLaunches) {
  ExpectTensorsCounted(LadderEdges(), 24, 40);
}

// So many bins that the tables of the tensors do not fit at once.
TEST(HistogramGpuTables, CountsMoreTensorsThanThereAreTables) {
  emulation::Reset();
  std::vector<uint32_t> edges;
  for (uint32_t i = 0; i < 100000; ++i) edges.push_back((90u << 23) + i * 3001);
  ExpectTensorsCounted(HistogramEdges(edges), 24, 34);
}

TEST_P(HistogramGpu, ReadsAllTypesAndScales) {
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
