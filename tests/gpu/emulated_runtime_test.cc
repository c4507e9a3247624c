// SPDX-License-Identifier: Apache-2.0
// The emulated runtime does work late, checks arguments, fails when told to and counts.
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "gpu/base/launch.h"
#include "tests/gpu/emulated_test.h"

namespace dlsim::gpu {
namespace {

class EmulatedRuntimeTest : public EmulatedTest {};

__global__ void AddOne(uint32_t* values) { values[threadIdx.x] += 1; }
__global__ void Copy(const uint32_t* from, uint32_t* to) { to[threadIdx.x] = from[threadIdx.x]; }

// Four numbers on the device, and pinned ones that a stream copies there and back.
struct Numbers {
  Numbers() : device(4), pinned(4) { std::memset(pinned.data(), 0, pinned.size_bytes()); }

  void ToDevice(Stream stream) const {
    CheckCuda(cudaMemcpyAsync(device.data(), pinned.data(), 16, cudaMemcpyHostToDevice, stream),
              "cudaMemcpyAsync");
  }
  void ToHost(Stream stream) const {
    CheckCuda(cudaMemcpyAsync(pinned.data(), device.data(), 16, cudaMemcpyDeviceToHost, stream),
              "cudaMemcpyAsync");
  }

  DeviceBuffer<uint32_t> device;
  PinnedBuffer<uint32_t> pinned;
};

TEST_F(EmulatedRuntimeTest, WorkIsDoneWhenSomethingWaitsForIt) {
  const Numbers numbers;
  const OwnedStream stream;
  numbers.ToDevice(stream.get());
  Launch("AddOne", AddOne, {1, 4}, stream.get(), numbers.device.data());
  numbers.ToHost(stream.get());
  EXPECT_EQ(numbers.pinned.data()[0], 0u);  // a wait is missing
  EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  EXPECT_EQ(numbers.pinned.data()[0], 1u);
}

TEST_F(EmulatedRuntimeTest, PinnedMemoryIsReadLateAndPageableMemoryAtOnce) {
  const Numbers numbers;
  const OwnedStream stream;
  numbers.ToDevice(stream.get());
  numbers.pinned.data()[0] = 5;  // too early
  EXPECT_EQ(ToHost(numbers.device)[0], 5u);

  uint32_t pageable[4] = {6, 6, 6, 6};
  ASSERT_EQ(
      cudaMemcpyAsync(numbers.device.data(), pageable, 16, cudaMemcpyHostToDevice, stream.get()),
      cudaSuccess);
  pageable[0] = 7;
  EXPECT_EQ(ToHost(numbers.device)[0], 6u);
  EXPECT_EQ(emulation::Counts().pageable_copies, 3u);  // this one and two of ToHost
}

TEST_F(EmulatedRuntimeTest, EventsOrderStreams) {
  const Numbers numbers;
  const OwnedStream writer;
  const OwnedStream reader;
  OwnedEvent written;
  numbers.pinned.data()[0] = 8;
  numbers.ToDevice(writer.get());
  Launch("AddOne", AddOne, {1, 4}, writer.get(), numbers.device.data());
  written.Record(writer.get());
  numbers.ToHost(reader.get());
  EXPECT_EQ(cudaStreamSynchronize(reader.get()), cudaSuccess);
  EXPECT_EQ(numbers.pinned.data()[0], 0xCDCDCDCDu);  // a wait is missing: fresh memory

  numbers.pinned.data()[0] = 8;
  EXPECT_EQ(cudaStreamWaitEvent(reader.get(), written.get()), cudaSuccess);
  numbers.ToHost(reader.get());
  EXPECT_EQ(cudaStreamSynchronize(reader.get()), cudaSuccess);
  EXPECT_EQ(numbers.pinned.data()[0], 9u);
}

TEST_F(EmulatedRuntimeTest, EventsTellWhetherTheyHaveCome) {
  const Numbers numbers;
  const OwnedStream stream;
  OwnedEvent begin(Timing::kOn);
  OwnedEvent end(Timing::kOn);
  begin.Record(stream.get());
  numbers.ToDevice(stream.get());
  end.Record(stream.get());
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), cudaErrorNotReady);
  int queries = 1;
  while (cudaEventQuery(end.get()) == cudaErrorNotReady) ++queries;
  EXPECT_EQ(queries, 4);  // one piece of work goes on with each
  EXPECT_EQ(cudaStreamQuery(stream.get()), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), cudaSuccess);
  EXPECT_GE(milliseconds, 0);
  OwnedEvent untimed;
  untimed.Record(stream.get());
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin.get(), untimed.get()),
            cudaErrorInvalidResourceHandle);
}

TEST_F(EmulatedRuntimeTest, TheDefaultStreamWaitsForBlockingStreamsAndTheyForIt) {
  const Numbers numbers;
  cudaStream_t blocking = nullptr;
  ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
  numbers.ToDevice(blocking);
  Launch("AddOne", AddOne, {1, 4}, nullptr, numbers.device.data());
  numbers.ToHost(blocking);
  EXPECT_EQ(cudaStreamDestroy(blocking), cudaSuccess);  // does not wait
  EXPECT_EQ(numbers.pinned.data()[0], 0u);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(numbers.pinned.data()[0], 1u);
}

TEST_F(EmulatedRuntimeTest, FreeingWaits) {
  const PinnedBuffer<uint32_t> pinned(4);
  const OwnedStream stream;
  {
    const DeviceBuffer<uint32_t> buffer = ToDevice(std::vector<uint32_t>{1, 2, 3, 4});
    ASSERT_EQ(
        cudaMemcpyAsync(pinned.data(), buffer.data(), 16, cudaMemcpyDeviceToHost, stream.get()),
        cudaSuccess);
  }
  EXPECT_EQ(pinned.data()[3], 4u);
}

TEST_F(EmulatedRuntimeTest, RejectsWrongRanges) {
  const Numbers numbers;
  std::vector<uint32_t> pageable(8);
  uint32_t* const device = numbers.device.data();
  const auto copy = [](void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return cudaMemcpy(to, from, bytes, kind);
  };
  EXPECT_EQ(copy(device, pageable.data(), 17, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(device + 1, pageable.data(), 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(numbers.pinned.data(), device, 17, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(copy(device, pageable.data(), 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(copy(pageable.data(), device, 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(nullptr, device, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(device, 0, 17), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(pageable.data(), 0, 4), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(device + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(device), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(EmulatedRuntimeTest, RejectsWrongLaunches) {
  const Numbers numbers;
  const auto launch = [&](unsigned blocks, unsigned threads, size_t shared_bytes) {
    const cudaLaunchConfig_t config = {blocks, threads, shared_bytes, nullptr, nullptr, 0};
    return cudaLaunchKernelEx(&config, AddOne, numbers.device.data());
  };
  EXPECT_EQ(launch(0, 4, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(1, 0, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(1, 1025, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(1, 4, 48 * 1024 + 1), cudaErrorInvalidValue);
  const auto allow = [](int bytes) {
    return cudaFuncSetAttribute(AddOne, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  };
  EXPECT_EQ(allow(227 * 1024 + 1), cudaErrorInvalidValue);
  EXPECT_EQ(allow(227 * 1024), cudaSuccess);
  EXPECT_EQ(launch(1, 4, 227 * 1024), cudaSuccess);
  EXPECT_EQ(emulation::Counts().launches, 1u);
}

TEST_F(EmulatedRuntimeTest, KernelsUseMemoryOfTheirDeviceOnly) {
  emulation::Reset({.device_count = 2});
  std::vector<uint32_t> pageable(4);
  const Numbers numbers;
  Launch("AddOne", AddOne, {1, 4}, nullptr, pageable.data());
  EXPECT_THROW(cudaDeviceSynchronize(), std::logic_error);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
}

TEST_F(EmulatedRuntimeTest, DevicesHaveTheirOwnStreamsEventsAndMemory) {
  emulation::Reset({.device_count = 2, .memory_bytes = 1000});
  const OwnedStream stream;
  OwnedEvent event;
  const DeviceBuffer<std::byte> first(1000);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 1), cudaErrorMemoryAllocation);
  const CurrentDevice other(1);
  const DeviceBuffer<uint32_t> buffer(4);
  cudaPointerAttributes attributes = {};
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, buffer.data() + 3), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(attributes.device, 1);
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, &memory), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  size_t free = 0;
  size_t total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(free, 984u);
  EXPECT_THROW(Launch("AddOne", AddOne, {1, 4}, stream.get(), buffer.data()), Error);
  EXPECT_EQ(cudaEventRecord(event.get(), nullptr), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaSetDevice(-1), cudaErrorInvalidDevice);
}

TEST_F(EmulatedRuntimeTest, AMachineWithoutADriverSaysSo) {
  emulation::Reset({.driver = cudaErrorInsufficientDriver});
  int count = 5;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  EXPECT_EQ(count, 0);
  EXPECT_EQ(cudaSetDevice(0), cudaErrorInsufficientDriver);
  emulation::Reset({.device_count = 0});
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
}

TEST_F(EmulatedRuntimeTest, FailsTheRequestedCall) {
  emulation::FailCall("cudaMalloc", 2, cudaErrorMemoryAllocation);
  const DeviceBuffer<uint32_t> first(4);
  EXPECT_EQ(emulation::FailedCall(), "");
  EXPECT_THROW(DeviceBuffer<uint32_t>(4), Error);
  EXPECT_EQ(emulation::FailedCall(), "cudaMalloc");
  const DeviceBuffer<uint32_t> third(4);

  emulation::FailCall("", 2, cudaErrorUnknown);
  const OwnedStream stream;
  EXPECT_THROW(OwnedEvent(), Error);
  EXPECT_EQ(emulation::FailedCall(), "cudaEventCreate");
}

TEST_F(EmulatedRuntimeTest, ADeviceThatIsLostStaysLost) {
  const Numbers numbers;
  emulation::FailKernel(2);
  for (int i = 0; i < 3; ++i) {
    Launch("Copy", Copy, {1, 4}, nullptr, numbers.device.data(), numbers.device.data());
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 4), cudaErrorIllegalAddress);
}

TEST_F(EmulatedRuntimeTest, CountsWhatLivesAndWhatWasDone) {
  {
    const Numbers numbers;
    const OwnedStream stream;
    const OwnedEvent event;
    EXPECT_EQ(emulation::Live().device_allocations, 1u);
    EXPECT_EQ(emulation::Live().host_allocations, 1u);
    EXPECT_EQ(emulation::Live().streams, 1u);
    EXPECT_EQ(emulation::Live().events, 1u);
    EXPECT_THROW(emulation::Reset(), std::logic_error);
    EXPECT_EQ(emulation::Counts().allocations, 4u);
    EXPECT_EQ(emulation::Counts().synchronizations, 0u);
    std::vector<uint32_t> pageable(4);
    EXPECT_EQ(cudaMemcpyAsync(pageable.data(), numbers.device.data(), 16, cudaMemcpyDeviceToHost,
                              stream.get()),
              cudaSuccess);
    EXPECT_EQ(emulation::Counts().synchronizations, 1u);  // copies to pageable memory wait
    EXPECT_EQ(emulation::CountOf("cudaMemcpyAsync"), 1u);
  }
  EXPECT_EQ(emulation::Live().total(), 0u);
}

}  // namespace
}  // namespace dlsim::gpu
