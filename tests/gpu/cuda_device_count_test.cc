// SPDX-License-Identifier: Apache-2.0
// A profile that a device counts is that of the CPU.
#include <gtest/gtest.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/gpu/devices.h"
#include "dlsim/ladder.h"
#include "dlsim/profile.h"
#include "emulation.h"
#include "src/device/compute_device.h"
#include "tests/gpu/device_arrays.h"
#include "tests/gpu/device_traces.h"
#include "tests/support/test_traces.h"

namespace dlsim::gpu {
namespace {

const HistogramEdges& FewEdges() {
  static const HistogramEdges edges =
      EdgesOf({{ParseFormat("fp16")}, {Rounding::kNearestEven}, {Subnormals::kKeep}, {1.0f, 8.0f}});
  return edges;
}

// What channels lose is not known of memory of a device.
ProfileStep WithoutChannels(ProfileStep step) {
  step.channels.clear();
  return step;
}

class CudaDeviceCount : public TraceDirectoryTest {
 protected:
  CudaDeviceCount() {
    emulation::Reset();
    device_ = OpenDevice(0);
  }

  void ExpectSameProfile(const TraceStep& step, const HistogramEdges& edges = FewEdges()) {
    for (const Accumulation accumulation : kAccumulations) {
      EXPECT_EQ(ProfileOf(step, edges, OptionsOf(accumulation, device_.get())),
                ProfileOf(step, edges, OptionsOf(accumulation)));
    }
  }

  std::unique_ptr<ComputeDevice> device_;
};

TEST_F(CudaDeviceCount, EqualsTheCpuForAllTypesAndMicroSteps) {
  dir_.Write("step-0.micro-0.safetensors", AllTypes(1));
  dir_.Write("step-0.micro-1.safetensors", AllTypes(7));
  dir_.Write("step-1.safetensors", AllTypes(9));
  ExpectSameProfile(Open().Load(0));
  ExpectSameProfile(Open().Load(1));
  ExpectSameProfile(InMemory(Open().Load(0)).step());
}

TEST_F(CudaDeviceCount, EqualsTheCpuForOtherEdgesNext) {
  dir_.Write("step-0.safetensors", AllTypes(1));
  const TraceStep step = Open().Load(0);
  ExpectSameProfile(step);
  ExpectSameProfile(step, HistogramEdges({0x3F800001u, 0x40490FDBu}));
  ExpectSameProfile(step, EdgesOf(DefaultLadder()));
}

TEST_F(CudaDeviceCount, EqualsTheCpuForActivationsThatAreShorterOrMissing) {
  dir_.Write("step-0.micro-0.safetensors",
             BuildSafetensors({FloatTensor("w.grad", ManyValues(10, 1)),
                               FloatTensor("x.act_grad", ManyValues(66'000, 2))}));
  dir_.Write("step-0.micro-1.safetensors",
             BuildSafetensors({FloatTensor("w.grad", ManyValues(10, 3)),
                               FloatTensor("x.act_grad", ManyValues(5, 4)),
                               FloatTensor("y.act_grad", ManyValues(7, 5))}));
  ExpectSameProfile(Open().Load(0));
}

TEST_F(CudaDeviceCount, EqualsTheCpuForMoreTensorsThanAWaveHas) {
  std::vector<BuiltTensor> tensors;
  for (uint32_t t = 0; t < 300; ++t) {
    tensors.push_back(FloatTensor("w" + std::to_string(t) + ".grad", ManyValues(t % 5, t)));
  }
  dir_.Write("step-0.safetensors", BuildSafetensors(tensors));
  ExpectSameProfile(Open().Load(0));
}

// A step whose tensors are in device memory, at addresses that are aligned to their elements alone.
class OnDevice {
 public:
  explicit OnDevice(const TraceStep& step) : step_(step) {
    for (Recording& recording : step_.recordings) {
      for (TraceTensor& tensor : recording.tensors) Move(tensor);
    }
  }

  const TraceStep& step() const { return step_; }

 private:
  void Move(TraceTensor& tensor) {
    const size_t element = DTypeSize(tensor.dtype), bytes = tensor.elements * element;
    std::vector<std::byte> buffer(bytes);
    const std::byte* const from = tensor.Bytes(0, buffer);
    const std::vector<std::byte> content(from, from + bytes);
    tensor.memory = memory_.emplace_back(content, element).data();
    tensor.device = 0;
  }

  TraceStep step_;
  std::deque<DeviceBytes> memory_;
};

TEST_F(CudaDeviceCount, CountsWhatIsOnTheDeviceAlready) {
  dir_.Write("step-0.micro-0.safetensors", AllTypes(1));
  dir_.Write("step-0.micro-1.safetensors", AllTypes(7));
  dir_.Write("step-1.safetensors",
             BuildSafetensors({FloatTensor("w.grad", ManyValues(200'000, 1))}));
  const TraceReader trace = Open();
  for (const size_t i : {0u, 1u}) {
    const TraceStep host = trace.Load(i);
    const OnDevice device(host);
    EXPECT_EQ(ProfileOf(device.step(), FewEdges(), OptionsOf({}, device_.get())),
              WithoutChannels(ProfileOf(host, FewEdges(), OptionsOf({}))));
  }
}

TEST_F(CudaDeviceCount, CountsTensorsOfHostAndDeviceTogether) {
  dir_.Write("step-0.safetensors", AllTypes(3));
  const TraceStep host = Open().Load(0);
  const OnDevice device(host);
  TraceStep mixed = device.step();
  for (size_t t = 0; t < mixed.recordings[0].tensors.size(); t += 2) {
    mixed.recordings[0].tensors[t] = host.recordings[0].tensors[t];
  }
  EXPECT_EQ(WithoutChannels(ProfileOf(mixed, FewEdges(), OptionsOf({}, device_.get()))),
            WithoutChannels(ProfileOf(host, FewEdges(), OptionsOf({}))));
}

TEST_F(CudaDeviceCount, RefusesToReadDeviceMemoryOnTheHost) {
  dir_.Write("step-0.micro-0.safetensors", AllTypes(1));
  dir_.Write("step-0.micro-1.safetensors", AllTypes(7));
  const OnDevice device(Open().Load(0));
  EXPECT_THROW(ProfileOf(device.step(), FewEdges(), OptionsOf({})), Error);
  const StepOptions summed = OptionsOf(Accumulation::kSumThenQuantize, device_.get());
  EXPECT_THROW(ProfileOf(device.step(), FewEdges(), summed), Error);
}

TEST_F(CudaDeviceCount, AllocatesNothingForStepsThatAreAlike) {
  if (!emulation::kIsEmulated) GTEST_SKIP() << emulation::kNeeded;
  dir_.Write("step-0.safetensors", AllTypes(1));
  const TraceStep step = Open().Load(0);
  const auto count = [&] { ProfileOf(step, FewEdges(), OptionsOf({}, device_.get())); };
  for (int i = 0; i < 3; ++i) count();  // every buffer has had its turn
  const uint64_t before = emulation::Counts().allocations;
  count();
  EXPECT_EQ(emulation::Counts().allocations, before);
}

}  // namespace
}  // namespace dlsim::gpu
