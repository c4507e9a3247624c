// SPDX-License-Identifier: Apache-2.0
// What a device measures of a step has the digits of the CPU.
#include <gtest/gtest.h>

#include <memory>

#include "dlsim/gpu/devices.h"
#include "emulation.h"
#include "src/device/compute_device.h"
#include "tests/gpu/device_traces.h"
#include "tests/support/same_measurement.h"
#include "tests/support/test_traces.h"

namespace dlsim::gpu {
namespace {

// Scales of a step's tensors, of which there may be `count`.
std::vector<float> TensorScales(size_t count) {
  std::vector<float> scales(count);
  for (size_t t = 0; t < count; ++t) scales[t] = std::ldexp(1.25f, static_cast<int>(t % 30));
  return scales;
}

std::vector<StepQuestion> SimpleQuestions(size_t tensors) {
  std::vector<StepQuestion> questions = {
      {{kFp16}, 1024.0f},
      {{kBf16, Rounding::kTowardNegative, Overflow::kSaturate}, 0x1p-20f},
      {{kCb16, Rounding::kNearestAway, {}, Subnormals::kFlushToZero}, 2e15f},
      {{kFp16, Rounding::kStochastic}, 8.0f},
      {{kBf16, Rounding::kStochastic}, 3.0f}};
  questions.push_back({{kCb16}});
  questions.back().tensor_scales = TensorScales(tensors);
  return questions;
}

std::vector<StepQuestion> DetailQuestions(size_t tensors) {
  std::vector<StepQuestion> questions = {{{kFp16}, 2.0f}, {{kCb16, Rounding::kStochastic}, 4.0f}};
  questions.push_back({{kBf16}, 4.0f, TensorScales(tensors)});
  questions[1].detail = {1.0f, 0.5f, ClipDomain::kScaled};
  questions[2].detail = {0x1p-10f, 0x1p-12f, ClipDomain::kUnscaled};
  return questions;
}

class CudaDeviceMeasure : public TraceDirectoryTest {
 protected:
  CudaDeviceMeasure() {
    emulation::Reset();
    device_ = OpenDevice(0);
  }

  void ExpectSame(const TraceStep& step, std::span<const StepQuestion> questions) {
    for (const Accumulation accumulation : kAccumulations) {
      SCOPED_TRACE(static_cast<int>(accumulation));
      ExpectSameBits(MeasureStep(step, questions, OptionsOf(accumulation, device_.get())),
                     MeasureStep(step, questions, OptionsOf(accumulation)));
    }
  }
  void ExpectSame(const TraceStep& step) {
    const size_t tensors = TensorsOf(step).size();
    ExpectSame(step, SimpleQuestions(tensors));
    ExpectSame(step, DetailQuestions(tensors));
  }

  std::unique_ptr<ComputeDevice> device_;
};

TEST_F(CudaDeviceMeasure, EqualsTheCpuForAllTypesMisaligned) {
  dir_.Write("step-0.safetensors", AllTypes(1));
  ExpectSame(Open().Load(0));
  const InMemory memory(Open().Load(0));
  for (const TraceTensor& tensor : memory.step().recordings.front().tensors) {
    EXPECT_NE(reinterpret_cast<uintptr_t>(tensor.memory) % DTypeSize(tensor.dtype), 0u);
  }
  ExpectSame(memory.step());
}

TEST_F(CudaDeviceMeasure, EqualsTheCpuForMicroStepsInFilesOrMemory) {
  dir_.Write("step-0.micro-0.safetensors", AllTypes(1));
  dir_.Write("step-0.micro-1.safetensors", AllTypes(7));
  dir_.Write("step-0.micro-2.safetensors", AllTypes(9));
  ExpectSame(Open().Load(0));
  ExpectSame(InMemory(Open().Load(0)).step());
}

TEST_F(CudaDeviceMeasure, EqualsTheCpuForActivationsThatAreShorterOrMissing) {
  dir_.Write("step-0.micro-0.safetensors",
             BuildSafetensors({FloatTensor("w.grad", ManyValues(10, 1)),
                               FloatTensor("x.act_grad", ManyValues(66'000, 2))}));
  dir_.Write("step-0.micro-1.safetensors",
             BuildSafetensors({FloatTensor("w.grad", ManyValues(10, 3)),
                               FloatTensor("x.act_grad", ManyValues(5000, 4)),
                               FloatTensor("y.act_grad", ManyValues(7, 5))}));
  ExpectSame(Open().Load(0));
}

TEST_F(CudaDeviceMeasure, EqualsTheCpuForSeveralWavesOfSmallTensors) {
  std::vector<BuiltTensor> tensors;
  for (uint32_t t = 0; t < 1000; ++t) {
    tensors.push_back(FloatTensor("w" + std::to_string(t) + ".grad", ManyValues(t % 5, t)));
  }
  dir_.Write("step-0.safetensors", BuildSafetensors(tensors));
  const std::vector<StepQuestion> questions = SimpleQuestions(tensors.size());
  ExpectSame(Open().Load(0), std::span(questions).last(1));
}

TEST_F(CudaDeviceMeasure, EqualsTheCpuWithoutQuestionsOrTensors) {
  dir_.Write("step-0.safetensors", AllTypes(1));
  dir_.Write("step-1.safetensors", BuildSafetensors({}));
  ExpectSame(Open().Load(0), {});
  ExpectSame(Open().Load(1));
}

TEST_F(CudaDeviceMeasure, AllocatesNothingForStepsThatAreAlike) {
  if (!emulation::kIsEmulated) GTEST_SKIP() << emulation::kNeeded;
  dir_.Write("step-0.safetensors", AllTypes(1));
  const TraceStep step = Open().Load(0);
  const std::vector<StepQuestion> questions = SimpleQuestions(TensorsOf(step).size());
  const auto measure = [&] { MeasureStep(step, questions, OptionsOf({}, device_.get())); };
  for (int i = 0; i < 3; ++i) measure();  // every buffer has had its turn
  const uint64_t before = emulation::Counts().allocations;
  measure();
  EXPECT_EQ(emulation::Counts().allocations, before);
  EXPECT_EQ(emulation::Counts().pageable_copies, 0u);
}

TEST_F(CudaDeviceMeasure, WorksForOthersThanTheCurrentDevice) {
  if (!emulation::kIsEmulated) GTEST_SKIP() << emulation::kNeeded;
  device_ = nullptr;
  emulation::Reset({.device_count = 2});
  device_ = OpenDevice(1);
  dir_.Write("step-0.safetensors", AllTypes(1));
  const TraceStep step = Open().Load(0);
  ExpectSame(step, SimpleQuestions(TensorsOf(step).size()));
}

}  // namespace
}  // namespace dlsim::gpu
