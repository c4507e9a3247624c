// SPDX-License-Identifier: Apache-2.0
// The kernels on a device give what the CPU gives; their bodies are tested on the host. Skipped
// without a device.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/error.h"
#include "dlsim/gpu.h"
#include "dlsim/table.h"
#include "gpu/base/cuda.h"
#include "src/device/compute_device.h"
#include "tests/exhaustive/proof_formats.h"
#include "tests/gpu/device_traces.h"
#include "tests/gpu/elements.h"

namespace dlsim::gpu {
namespace {

// Bytes in device memory, `offset` bytes past an aligned address.
class DeviceBytes {
 public:
  DeviceBytes(const std::vector<std::byte>& content, size_t offset = 0)
      : size_(content.size()), offset_(offset), bytes_(offset + size_ + 16) {
    CheckCuda(cudaMemcpy(data(), content.data(), size_, cudaMemcpyHostToDevice), "cudaMemcpy");
    CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  explicit DeviceBytes(size_t size, size_t offset = 0)
      : DeviceBytes(std::vector<std::byte>(size), offset) {}

  std::byte* data() const { return bytes_.data() + offset_; }

  template <class T>
  std::vector<T> Read() const {
    std::vector<T> content(size_ / sizeof(T));
    CheckCuda(cudaMemcpy(content.data(), data(), size_, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return content;
  }

 private:
  size_t size_, offset_;
  DeviceBuffer<std::byte> bytes_;
};

constexpr size_t kCounts[] = {0, 1, 9, 512, 513, 4095, 4096, 70001, 1'000'003};

TEST(DeviceTest, EncodesAndDecodesAsTheCpu) {
  for (const NamedFormat& format : FormatsUnderTest()) {
    if (CodeBytes(format.format) != 2) continue;
    for (const DType dtype : kDTypes) {
      for (const size_t offset : {0, 1}) {
        for (const size_t count : {1, 4096, 70001}) {
          const ArrayConversion how = {{format.format, Rounding::kStochastic}, 3.0f, {5, 6}, 16};
          const std::vector<std::byte> elements = Elements(dtype, count, 1);
          const DeviceBytes values(elements, offset * DTypeSize(dtype));
          const DeviceBytes codes(2 * count, 2 * offset), decoded(4 * count, 4 * offset);
          const DeviceTensor tensor = {values.data(), count, dtype, codes.data(), 8.0f};
          Encode(how, tensor, nullptr);
          Decode(format.format, codes.data(), reinterpret_cast<float*>(decoded.data()), count,
                 nullptr);
          const auto expected = OnCpu<uint16_t>(how, dtype, 8.0f, elements);
          ASSERT_EQ(codes.Read<uint16_t>(), expected) << format.name << " " << NameOf(dtype);
          std::vector<float> values_of_codes(count);
          DecodeArray(format.format, std::span<const uint16_t>(expected), values_of_codes);
          const std::vector<uint32_t> bits = decoded.Read<uint32_t>();
          for (size_t i = 0; i < count; ++i) {
            ASSERT_EQ(bits[i], std::bit_cast<uint32_t>(values_of_codes[i])) << format.name;
          }
        }
      }
    }
  }
}

TEST(DeviceTest, TabulatesAsTheCpu) {
  std::vector<DeviceBytes> memory;
  std::vector<DeviceTensor> tensors;
  std::vector<TensorTable> expected;
  const auto add = [&](DType dtype, const std::vector<std::byte>& elements, size_t offset) {
    memory.emplace_back(elements, offset * DTypeSize(dtype));
    tensors.push_back(
        {memory.back().data(), elements.size() / DTypeSize(dtype), dtype, nullptr, 8.0f});
    expected.push_back(dlsim::Tabulate(FloatsOf(dtype, 8.0f, elements)));
  };
  for (const DType dtype : kDTypes) {
    for (const size_t count : kCounts) add(dtype, Elements(dtype, count, 7), count % 3);
  }
  for (const float same : {0.0f, 1.0f, 1.9999999f, 1e-42f, INFINITY}) {
    const std::vector<float> values(500'000, same);
    const auto bytes = std::as_bytes(std::span(values));
    add(DType::kF32, {bytes.begin(), bytes.end()}, 0);
  }
  const std::vector<float> wide = ManyValues(3'000'000, 1);
  const auto bytes = std::as_bytes(std::span(wide));
  add(DType::kF32, {bytes.begin(), bytes.end()}, 0);
  for (int repeat = 0; repeat < 3; ++repeat) {
    const std::vector<TensorTable> tables = Tabulate(tensors, nullptr);
    for (size_t t = 0; t < tensors.size(); ++t) ASSERT_EQ(tables[t], expected[t]) << "tensor " << t;
  }
}

class HostArrays : public TraceDirectoryTest {
 protected:
  std::unique_ptr<ComputeDevice> device_ = OpenDevice(0);
};

TEST_F(HostArrays, AreConvertedAsTheCpuDoes) {
  const std::vector<float> values = ManyValues((size_t{1} << 22) + 100, 1);
  const ArrayConversion how = {.conversion = {kFp16, Rounding::kStochastic}, .random = {5, 6}};
  std::vector<uint16_t> codes(values.size()), expected(values.size());
  device_->Encode(how, DType::kF32, std::as_bytes(std::span(values)),
                  std::as_writable_bytes(std::span(codes)));
  EncodeArray(how, values, std::span<uint16_t>(expected));
  EXPECT_EQ(codes, expected);
  std::vector<float> decoded(values.size()), expected_values(values.size());
  device_->Decode(kFp16, std::as_bytes(std::span(codes)), decoded);
  DecodeArray(kFp16, std::span<const uint16_t>(codes), expected_values);
  EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(decoded)),
                                 std::as_bytes(std::span(expected_values))));
}

TEST_F(HostArrays, OfStepsAreTabulatedAsTheCpuDoes) {
  dir_.Write("step-0.micro-0.safetensors", AllTypes(1));
  dir_.Write("step-0.micro-1.safetensors", AllTypes(100));
  const TraceStep step = Open().Load(0);
  EXPECT_EQ(TabulateStep(step, OptionsOf(Accumulation::kQuantizeThenSum, device_.get())),
            TabulateStep(step, {}));
}

// Returns what a call says that fails.
template <class Call>
std::string MessageOf(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    return error.what();
  }
  return "nothing";
}

TEST(DeviceErrors, NameTheCallAndTheArgument) {
  const DeviceBytes memory(64);
  std::byte* const here = memory.data();
  float host[8] = {};
  ArrayConversion how = {{kFp16}};
  const auto encode = [&](const DeviceTensor& tensor) {
    return MessageOf([&] { Encode(how, tensor, nullptr); });
  };
  EXPECT_EQ(encode({nullptr, 8, DType::kF32, here}),
            "dlsim::gpu::Encode: values are a null pointer");
  EXPECT_EQ(encode({here, 8, DType::kF32, nullptr}),
            "dlsim::gpu::Encode: codes are a null pointer");
  EXPECT_EQ(encode({here + 2, 8, DType::kF32, here}),
            "dlsim::gpu::Encode: values are misaligned, expected a multiple of 4 bytes, got one of "
            "2");
  EXPECT_EQ(encode({host, 8, DType::kF32, here}),
            "dlsim::gpu::Encode: values are not in device memory");
  const DeviceTensor of_host = {host, 8};
  EXPECT_EQ(MessageOf([&] {
              Tabulate({&of_host, 1}, nullptr);
            }),
            "dlsim::gpu::Tabulate: values are not in device memory");
  how.first_index = 4;
  EXPECT_EQ(encode({here, 8, DType::kF32, here}),
            "dlsim::gpu::Encode: bad first_index, expected a multiple of 8, got 4");
  EXPECT_EQ(
      MessageOf([&] { OpenDevice(99); }).rfind("--device: no such device, expected cuda:0", 0), 0u);
}

// Captured in a graph, calls only launch.
TEST(DeviceCalls, CanBeCaptured) {
  const DeviceBytes values(4 * 1000), codes(2 * 1000);
  const DeviceTensor tensor = {values.data(), 1000, DType::kF32, codes.data()};
  const OwnedStream stream;
  CheckCuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capture");
  Encode({{kFp16}}, tensor, stream.get());
  Decode(kFp16, codes.data(), reinterpret_cast<float*>(values.data()), 1000, stream.get());
  cudaGraph_t graph = nullptr;
  CheckCuda(cudaStreamEndCapture(stream.get(), &graph), "capture");
  size_t nodes = 0;
  CheckCuda(cudaGraphGetNodes(graph, nullptr, &nodes), "cudaGraphGetNodes");
  EXPECT_EQ(nodes, 2u);
  CheckCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
}

}  // namespace
}  // namespace dlsim::gpu
