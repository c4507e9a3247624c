// SPDX-License-Identifier: Apache-2.0
// Counter on an emulated device: each tensor of a list is counted as HistogramCounter counts it.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "counted_values.h"
#include "device_arrays.h"
#include "dlsim/gpu/histogram.h"
#include "emulation.h"
#include "histogram_sums.h"

namespace dlsim::gpu {
namespace {

using emulation::ThreadOrder;

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF64};

// Tensors in device memory, and what the CPU counts of them.
class Tensors {
 public:
  void Add(DType dtype, size_t count, float grad_scale = 1.0f, size_t offset = 0) {
    const std::vector<std::byte> elements =
        Elements(dtype, count, static_cast<uint32_t>(list_.size()));
    const size_t bytes = DTypeSize(dtype);
    memory_.push_back(std::make_unique<DeviceBytes>(elements, offset * bytes));
    DeviceTensor& tensor = list_.emplace_back();
    tensor.values = memory_.back()->data();
    tensor.elements = count;
    tensor.dtype = dtype;
    tensor.grad_scale = grad_scale;
    std::vector<float>& values = values_.emplace_back(count);
    for (size_t i = 0; i < count; i += kChunkElements) {
      const size_t length = std::min(kChunkElements, count - i);
      LoadFloats(dtype, &elements[i * bytes], grad_scale, std::span(values).subspan(i, length));
    }
  }

  std::span<const DeviceTensor> list() const { return list_; }

  void ExpectCounted(std::span<const HistogramSums> sums, const HistogramEdges& edges,
                     int times = 1) const {
    ASSERT_EQ(sums.size(), list_.size());
    for (size_t t = 0; t < sums.size(); ++t) {
      HistogramSums expected;
      for (int i = 0; i < times; ++i) expected.Merge(CountByDefinition(values_[t], edges));
      ASSERT_NO_FATAL_FAILURE(ExpectEqual(sums[t], expected)) << "tensor " << t;
    }
  }

 private:
  std::vector<std::unique_ptr<DeviceBytes>> memory_;
  std::vector<DeviceTensor> list_;
  std::vector<std::vector<float>> values_;
};

// Of all types, scales, alignments and sizes; the largest are several pieces.
Tensors MixedTensors() {
  Tensors tensors;
  for (const size_t count : {0u, 1u, 3u, 1000u, 5001u}) {
    for (const DType dtype : kDTypes) {
      tensors.Add(dtype, count);
      tensors.Add(dtype, count, 1024.0f, 1);
      tensors.Add(dtype, count, 0.3f, 3);
    }
  }
  tensors.Add(DType::kBF16, 70001, 8.0f);
  tensors.Add(DType::kF32, 131072);
  tensors.Add(DType::kF16, 65537, 1.0f, 1);
  tensors.Add(DType::kF32, 0);
  return tensors;
}

const HistogramEdges& FewEdges() {  // that do not repeat
  static const HistogramEdges edges({0x3F800001u, 0x40490FDBu, 0x12345678u});
  return edges;
}

class CounterGpu : public testing::TestWithParam<ThreadOrder> {
 protected:
  CounterGpu() {
    emulation::Reset();
    emulation::SetThreadOrder(GetParam(), 8);
  }
};
INSTANTIATE_TEST_SUITE_P(Orders, CounterGpu,
                         testing::Values(ThreadOrder::kAscending, ThreadOrder::kDescending,
                                         ThreadOrder::kShuffled));

TEST_P(CounterGpu, CountsEachTensorOfAListAsTheCpuDoes) {
  const Tensors tensors = MixedTensors();
  const TensorList list(tensors.list());
  const OwnedStream stream;
  for (const HistogramEdges* edges : {&LadderEdges(), &FewEdges()}) {
    Counter counter(*edges, list);
    counter.Count(stream.get());
    ASSERT_NO_FATAL_FAILURE(tensors.ExpectCounted(counter.Take(stream.get()), *edges));
  }
}

TEST_P(CounterGpu, AddsUpWhatIsCountedBeforeTakeWhichEmptiesIt) {
  Tensors tensors;
  tensors.Add(DType::kF32, 3000);
  tensors.Add(DType::kF16, 0);
  tensors.Add(DType::kBF16, 66000, 2.0f);
  const TensorList list(tensors.list());
  const OwnedStream stream;
  for (const HistogramEdges* edges : {&LadderEdges(), &FewEdges()}) {
    Counter counter(*edges, list);
    for (const int times : {0, 3, 0, 1, 2}) {
      for (int i = 0; i < times; ++i) counter.Count(stream.get());
      ASSERT_NO_FATAL_FAILURE(tensors.ExpectCounted(counter.Take(stream.get()), *edges, times));
    }
  }
}

class CounterTest : public testing::Test {
 protected:
  CounterTest() { emulation::Reset(); }
};

TEST_F(CounterTest, TakesMoreTensorsThanItBringsToTheHostAtOnce) {
  Tensors tensors;
  for (size_t t = 0; t < 140; ++t) tensors.Add(kDTypes[t % 4], t % 7 * 10);
  const TensorList list(tensors.list());
  Counter counter(LadderEdges(), list);
  counter.Count(nullptr);
  tensors.ExpectCounted(counter.Take(nullptr), LadderEdges());
}

TEST_F(CounterTest, HasNothingToCountInListsWithoutElements) {
  for (const size_t count : {0u, 1u, 3u}) {
    Tensors tensors;
    for (size_t t = 0; t < count; ++t) tensors.Add(DType::kF32, 0);
    const TensorList list(tensors.list());
    Counter counter(LadderEdges(), list);
    const uint64_t before = emulation::Counts().launches;
    counter.Count(nullptr);
    EXPECT_EQ(emulation::Counts().launches, before);
    tensors.ExpectCounted(counter.Take(nullptr), LadderEdges());
  }
}

TEST_F(CounterTest, CountsTheValuesThatAreThereWhenTheStreamGetsThere) {
  DeviceBuffer<float> memory(2);
  const DeviceTensor tensor = {memory.data(), 2};
  const TensorList list({&tensor, 1});
  Counter counter(LadderEdges(), list);
  const OwnedStream stream;
  PinnedBuffer<float> host(2);
  HistogramSums expected;
  for (const float value : {0.75f, -3.0f, 0.75f}) {
    const std::vector<float> values = {value, 0.0f};
    std::copy(values.begin(), values.end(), host.data());
    CheckCuda(cudaMemcpyAsync(memory.data(), host.data(), memory.size_bytes(),
                              cudaMemcpyHostToDevice, stream.get()),
              "cudaMemcpyAsync");
    counter.Count(stream.get());
    CheckCuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
    expected.Merge(CountByDefinition(values, LadderEdges()));
  }
  ExpectEqual(counter.Take(stream.get()).at(0), expected);
}

TEST_F(CounterTest, NeitherAllocatesNorWaitsToCount) {
  const Tensors tensors = MixedTensors();
  const TensorList list(tensors.list());
  Counter counter(LadderEdges(), list);
  const OwnedStream stream;
  const emulation::CallCounts before = emulation::Counts();
  counter.Count(stream.get());
  const emulation::CallCounts after = emulation::Counts();
  EXPECT_EQ(after.launches, before.launches + 1);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.synchronizations, before.synchronizations);
  EXPECT_EQ(after.pageable_copies, before.pageable_copies);
  counter.Take(stream.get());
}

TEST_F(CounterTest, KeepsWhatWasCountedWhenItMoves) {
  Tensors tensors;
  tensors.Add(DType::kF32, 500);
  const TensorList list(tensors.list());
  const OwnedStream stream;
  Counter counter(LadderEdges(), list);
  counter.Count(stream.get());
  Counter other = std::move(counter);
  other.Count(stream.get());
  tensors.ExpectCounted(other.Take(stream.get()), LadderEdges(), 2);
}

}  // namespace
}  // namespace dlsim::gpu
