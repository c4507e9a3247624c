// SPDX-License-Identifier: Apache-2.0
// Whichever call of a device fails, it is named, nothing leaks, and the next step is right.
#include <gtest/gtest.h>

#include <memory>

#include "dlsim/gpu/devices.h"
#include "dlsim/profile.h"
#include "emulation.h"
#include "src/base/side_task.h"
#include "src/device/compute_device.h"
#include "tests/gpu/device_traces.h"
#include "tests/support/same_measurement.h"

namespace dlsim::gpu {
namespace {

class CudaDeviceFailure : public TraceDirectoryTest {
 protected:
  CudaDeviceFailure() {
    emulation::Reset();
    UseTensors(3);
  }
  ~CudaDeviceFailure() override {
    device_ = nullptr;
    EXPECT_EQ(emulation::Live().total(), 0u);
    emulation::Reset();
  }

  // 256 of them are one wave.
  void UseTensors(uint32_t count) {
    std::vector<BuiltTensor> tensors;
    for (uint32_t t = 0; t < count; ++t) {
      tensors.push_back(FloatTensor("w" + std::to_string(t) + ".grad", ManyValues(3, t)));
    }
    dir_.Write("step-0.safetensors", BuildSafetensors(tensors));
    step_ = Open().Load(0);
    expected_ = MeasureStep(step_, kQuestions, OptionsOf({}));
    profile_ = ProfileOf(step_, edges_, OptionsOf({}));
  }
  void Measure() {
    ExpectSameBits(MeasureStep(step_, kQuestions, OptionsOf({}, device_.get())), expected_);
  }
  void Count() { EXPECT_EQ(ProfileOf(step_, edges_, OptionsOf({}, device_.get())), profile_); }

  // Lets each call of a new device fail in turn.
  void FailEachCall(const std::function<void()>& work, cudaError_t error) {
    for (uint64_t n = 1;; ++n) {
      device_ = OpenDevice(0);
      emulation::FailCall("", n, error);
      std::string message;
      try {
        work();
      } catch (const Error& failure) {
        EXPECT_EQ(failure.kind(), ErrorKind::kInput);
        message = failure.what();
      }
      const std::string failed = emulation::FailedCall();
      emulation::FailCall("", ~uint64_t{0}, error);  // no more of them
      if (failed.empty()) {
        EXPECT_GT(n, 9u);
        return;
      }
      // A launch is named for its kernel.
      const std::string name = failed == "cudaLaunchKernelEx" ? ": out of memory" : failed;
      EXPECT_NE(message.find(name), message.npos) << failed << " is not in: " << message;
      work();
      device_ = nullptr;
      EXPECT_EQ(emulation::Live().total(), 0u) << failed;
    }
  }

  static const std::vector<StepQuestion> kQuestions;
  const HistogramEdges edges_ = HistogramEdges({0x3F800001u});
  TraceStep step_;
  StepMeasurement expected_;
  ProfileStep profile_;
  std::unique_ptr<ComputeDevice> device_;
};

const std::vector<StepQuestion> CudaDeviceFailure::kQuestions = {{{kFp16}, 1024.0f}};

TEST_F(CudaDeviceFailure, NamesTheCallThatFailsInAMeasurement) {
  FailEachCall([this] { Measure(); }, cudaErrorMemoryAllocation);
}

TEST_F(CudaDeviceFailure, NamesTheCallThatFailsInACount) {
  FailEachCall([this] { Count(); }, cudaErrorMemoryAllocation);
}

TEST_F(CudaDeviceFailure, AWaitThatFailsDropsWhatElseRuns) {
  UseTensors(260);
  device_ = OpenDevice(0);
  for (const uint64_t n : {uint64_t{1}, uint64_t{2}}) {
    emulation::FailCall("cudaStreamSynchronize", n, cudaErrorUnknown);
    ExpectInputError([&] { Measure(); }, {"cudaStreamSynchronize: unknown error"});
    Measure();
    emulation::FailCall("cudaStreamSynchronize", n, cudaErrorUnknown);
    ExpectInputError([&] { Count(); }, {"cudaStreamSynchronize: unknown error"});
    Count();
  }
}

TEST_F(CudaDeviceFailure, ALostDeviceIsAnErrorEachTime) {
  device_ = OpenDevice(0);
  emulation::FailKernel(1);
  for (int i = 0; i < 2; ++i) {
    ExpectInputError([&] { Measure(); }, {"illegal memory access"});
    ExpectInputError([&] { Count(); }, {"illegal memory access"});
  }
}

TEST_F(CudaDeviceFailure, TooLittleMemoryIsSaid) {
  emulation::Reset({.memory_bytes = 1000});
  device_ = OpenDevice(0);
  ExpectInputError([&] { Measure(); }, {"cudaMalloc(65536 bytes): out of memory"});
  ExpectInputError([&] { Count(); }, {"cudaMalloc(", "out of memory"});
}

// The results of what ran are dropped, not written to where they no longer belong.
TEST_F(CudaDeviceFailure, AFailureOutsideTheDeviceStopsItsWork) {
  device_ = OpenDevice(0);
  const StepOptions options = OptionsOf({}, device_.get());
  const auto fail = [] { throw std::runtime_error("task"); };
  EXPECT_THROW(RunWithSideTask(fail, [&] { MeasureStep(step_, kQuestions, options); }),
               std::runtime_error);
  EXPECT_THROW(RunWithSideTask(fail, [&] { ProfileOf(step_, edges_, options); }),
               std::runtime_error);
  Measure();
  Count();
}

}  // namespace
}  // namespace dlsim::gpu
