// SPDX-License-Identifier: Apache-2.0
// Measurer, on the emulated device: many tensors, many calls, and what is refused.
#include "dlsim/gpu/measure.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "dlsim/error.h"
#include "emulation.h"
#include "tests/gpu/device_pieces.h"
#include "tests/support/same_measurement.h"

namespace dlsim::gpu {
namespace {

std::vector<float> Values(size_t count, uint32_t seed) {
  std::vector<float> values(count);
  uint32_t state = seed;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = std::ldexp(static_cast<float>(static_cast<int32_t>(state)), -30 - int(state % 41));
  }
  return values;
}

class MeasurerTest : public testing::Test {
 protected:
  void SetUp() override {
    emulation::Reset();
    for (const size_t size : {size_t{70000}, size_t{0}, size_t{5}, size_t{4096}}) {
      const std::vector<float>& values =
          values_.emplace_back(Values(size, static_cast<uint32_t>(values_.size())));
      DeviceTensor& tensor = tensors_.emplace_back();
      tensor.values = memory_.emplace_back(Upload(std::span<const float>(values))).data();
      tensor.elements = size;
      tensor.grad_scale = tensors_.size() == 3 ? 4.0f : 1.0f;
      tensor.random_stream = static_cast<uint32_t>(100 + tensors_.size());
    }
  }

  void ExpectAsOnCpu(const Measurer& measurer, std::vector<Measurement> questions) {
    const std::span<const TensorStats> results = measurer.host_results();
    ASSERT_EQ(results.size(), questions.size() * tensors_.size());
    for (size_t q = 0; q < questions.size(); ++q) {
      for (size_t t = 0; t < tensors_.size(); ++t) {
        std::vector<float> values = values_[t];
        for (float& value : values) value *= 1.0f / tensors_[t].grad_scale;
        questions[q].random.stream = tensors_[t].random_stream;
        ExpectSameBits(results[q * tensors_.size() + t], dlsim::Measure(values, questions[q]));
      }
    }
  }

  std::vector<std::vector<float>> values_;
  std::vector<DeviceBuffer<float>> memory_;
  std::vector<DeviceTensor> tensors_;
};

TEST_F(MeasurerTest, AnswersAsTheCpuDoesCallAfterCall) {
  const TensorList list(tensors_);
  Measurer measurer(list, 3);
  const OwnedStream stream;
  const std::vector<Measurement> questions = {
      {{kFp16}, 4.0f}, {{kCb16, Rounding::kStochastic}, 0.5f, {42, 0}}, {{kBf16}, 1.0f}};
  for (size_t count = 0; count <= questions.size(); ++count) {
    const std::vector<Measurement> asked(questions.begin(),
                                         questions.begin() + static_cast<ptrdiff_t>(count));
    measurer.Measure(asked, stream.get());
    CheckCuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
    ExpectAsOnCpu(measurer, asked);
  }
}

TEST_F(MeasurerTest, NeitherAllocatesNorWaits) {
  if (!emulation::kIsEmulated) GTEST_SKIP() << emulation::kNeeded;
  const TensorList list(tensors_);
  Measurer measurer(list, 2);
  const OwnedStream stream;
  const std::vector<Measurement> questions = {{{kFp16}, 4.0f, {}}};
  const emulation::CallCounts before = emulation::Counts();
  measurer.Measure(questions, stream.get());
  EXPECT_EQ(emulation::Counts().allocations, before.allocations);
  EXPECT_EQ(emulation::Counts().synchronizations, before.synchronizations);
  EXPECT_EQ(emulation::Counts().pageable_copies, before.pageable_copies);
  CheckCuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
}

TEST_F(MeasurerTest, RefusesMoreQuestionsThanItHasMemoryFor) {
  const TensorList list(tensors_);
  Measurer measurer(list, 1);
  try {
    measurer.Measure(std::vector<Measurement>(2), nullptr);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_STREQ(error.what(), "Measurer::Measure: too many questions, expected at most 1, got 2");
  }
}

TEST_F(MeasurerTest, LeaksNothingWhenACallFails) {
  if (!emulation::kIsEmulated) GTEST_SKIP() << emulation::kNeeded;
  const TensorList list(tensors_);
  const size_t live = emulation::Live().total();
  for (uint64_t n = 1; n < 4; ++n) {
    emulation::FailCall(n < 3 ? "cudaMalloc" : "cudaHostAlloc", n < 3 ? n : 1,
                        cudaErrorMemoryAllocation);
    EXPECT_THROW(Measurer(list, 2), Error);
    EXPECT_EQ(emulation::Live().total(), live);
  }
  Measurer measurer(list, 2);
  emulation::FailCall("cudaLaunchKernelEx", 1, cudaErrorInvalidValue);
  const std::vector<Measurement> questions(1, {{kFp16}, 1.0f, {}});
  EXPECT_THROW(measurer.Measure(questions, nullptr), Error);
}

}  // namespace
}  // namespace dlsim::gpu
