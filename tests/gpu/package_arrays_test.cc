// SPDX-License-Identifier: Apache-2.0
// What the Python package does to arrays on a device: on any device, whichever is the current one.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "python/src/device_arrays.h"
#include "tests/gpu/device_arrays.h"
#include "tests/gpu/emulated_test.h"
#include "tests/support/same_measurement.h"

namespace dlsim::python {
namespace {

constexpr size_t kCount = 70001;
constexpr DType kDTypes[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};

class PackageArrays : public gpu::EmulatedTest {
 protected:
  PackageArrays() { emulation::Reset({.device_count = 2}); }
};

// Memory of the second device, while the first is the current one.
gpu::DeviceBytes OnSecond(const std::vector<std::byte>& content) {
  const gpu::CurrentDevice second(1);
  return {content, 0};
}

const ArrayConversion kHow = {{kCb16, Rounding::kStochastic}, 1000.0f, {5, 9}, 0};
constexpr DeviceQueue kSecond = {1, nullptr};

void Wait() {
  const gpu::CurrentDevice second(1);
  gpu::CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

TEST_F(PackageArrays, CodesAreThoseOfTheCpu) {
  for (const DType dtype : kDTypes) {
    const std::vector<std::byte> elements = gpu::Elements(dtype, kCount, 1);
    const gpu::DeviceBytes values = OnSecond(elements);
    const gpu::DeviceBytes codes = OnSecond(std::vector<std::byte>(kCount * sizeof(uint16_t)));
    EncodeOnDevice(kSecond, kHow, {values.data(), kCount, dtype, codes.data()});
    Wait();
    const auto expected = gpu::OnCpu<uint16_t>(kHow, dtype, 1.0f, elements);
    EXPECT_EQ(codes.Read<uint16_t>(), expected) << NameOf(dtype);
  }
}

TEST_F(PackageArrays, ValuesAreThoseOfTheCpu) {
  std::vector<std::byte> elements = gpu::Elements(DType::kF16, kCount, 2);
  const gpu::DeviceBytes codes = OnSecond(elements);
  const gpu::DeviceBytes values = OnSecond(std::vector<std::byte>(kCount * sizeof(uint32_t)));
  DecodeOnDevice(kSecond, kCb16, codes.data(), reinterpret_cast<float*>(values.data()), kCount);
  Wait();
  std::vector<float> expected(kCount);
  DecodeArray(kCb16, codes.Read<uint16_t>(), expected);
  const std::vector<uint32_t> bits = values.Read<uint32_t>();
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(bits[i], std::bit_cast<uint32_t>(expected[i]));
}

TEST_F(PackageArrays, CountersAreThoseOfTheCpuAndNothingIsLeft) {
  const std::vector<Measurement> questions = {{{kFp16}, 1024.0f, {5, 9}},
                                              {{kCb16, Rounding::kStochastic}, 1.0f, {5, 9}}};
  std::vector<float> floats(kCount);
  LoadFloats(DType::kF32, gpu::Elements(DType::kF32, kChunkElements, 3).data(), 1.0f,
             std::span(floats).first(kChunkElements));
  const auto bytes = std::as_bytes(std::span(floats));
  const gpu::DeviceBytes values = OnSecond({bytes.begin(), bytes.end()});
  gpu::DeviceTensor tensor = {values.data(), kCount, DType::kF32};
  tensor.random_stream = 9;
  const size_t live = emulation::Live().total();
  const std::vector<TensorStats> results = MeasureOnDevice(kSecond, tensor, questions);
  EXPECT_EQ(emulation::Live().total(), live);
  const std::vector<TensorStats> expected = Measure(floats, questions);
  ASSERT_EQ(results.size(), expected.size());
  for (size_t q = 0; q < results.size(); ++q) ExpectSameBits(results[q], expected[q]);
}

TEST_F(PackageArrays, EmptyArraysNeedNoMemory) {
  EncodeOnDevice(kSecond, kHow, {});
  DecodeOnDevice(kSecond, kCb16, nullptr, nullptr, 0);
  const std::vector<Measurement> questions = {{{kFp16}}, {{kCb16}}};
  const std::vector<TensorStats> stats = MeasureOnDevice(kSecond, {}, questions);
  ASSERT_EQ(stats.size(), 2u);
  EXPECT_EQ(stats[0].elements, 0u);
}

TEST_F(PackageArrays, ArraysOfAnotherDeviceAreRefused) {
  const gpu::DeviceBytes values = OnSecond(std::vector<std::byte>(64));
  const gpu::DeviceTensor tensor = {values.data(), 8, DType::kF32, values.data()};
  const DeviceQueue first = {0, nullptr};
  EXPECT_THROW(EncodeOnDevice(first, kHow, tensor), Error);
}

}  // namespace
}  // namespace dlsim::python
