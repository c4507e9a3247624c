// SPDX-License-Identifier: Apache-2.0
// Conversions on the emulated device equal those on the CPU, bit for bit.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/error.h"
#include "dlsim/gpu/convert.h"
#include "dlsim/measure.h"
#include "emulation.h"
#include "gpu/base/check_cuda.h"
#include "gpu/base/device_buffer.h"
#include "tests/exhaustive/proof_formats.h"
#include "tests/gpu/device_arrays.h"
#include "tests/support/boundaries.h"

namespace dlsim::gpu {
namespace {

constexpr size_t kTile = 4096;  // elements of a thread block
struct Offsets {
  size_t values = 0;  // in elements
  size_t codes = 0;
};

template <class Code>
void ExpectAsCpu(const ArrayConversion& how, DType dtype, float grad_scale, size_t count,
                 const Offsets& offsets = {}) {
  const std::vector<std::byte> elements = Elements(dtype, count, static_cast<uint32_t>(count));
  const DeviceBytes values(elements, offsets.values * DTypeSize(dtype));
  const DeviceBytes codes(count * sizeof(Code), offsets.codes * sizeof(Code));
  DeviceTensor tensor = {values.data(), count, dtype, codes.data(), grad_scale};
  Encode(how, tensor, nullptr);
  CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const std::vector<Code> expected = OnCpu<Code>(how, dtype, grad_scale, elements);
  const std::vector<Code> actual = codes.Read<Code>();
  for (size_t i = 0; i < count; ++i) {
    ASSERT_EQ(actual[i], expected[i]) << NameOf(dtype) << " element " << i << " of " << count;
  }
}

void ExpectAsCpuInWidth(const ArrayConversion& how, DType dtype, float grad_scale, size_t count,
                        const Offsets& offsets = {}) {
  if (CodeBytes(how.conversion.format) == 2) {
    ExpectAsCpu<uint16_t>(how, dtype, grad_scale, count, offsets);
  } else {
    ExpectAsCpu<uint32_t>(how, dtype, grad_scale, count, offsets);
  }
}

constexpr DType kDTypes[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};

ArrayConversion How(const Format& format, Rounding rounding) {
  ArrayConversion how = {{format, rounding}};
  how.random = {0x0123456789ABCDEF, 7};
  return how;
}

class ConvertGpu : public testing::TestWithParam<std::tuple<NamedFormat, NamedRounding>> {
 protected:
  void SetUp() override { emulation::Reset(); }
  static ArrayConversion GivenHow() {
    return How(std::get<0>(GetParam()).format, std::get<1>(GetParam()).rounding);
  }
};
INSTANTIATE_TEST_SUITE_P(All, ConvertGpu,
                         testing::Combine(testing::ValuesIn(FormatsUnderTest()),
                                          testing::ValuesIn(kRoundings)),
                         [](const auto& test) {
                           return TestName(std::get<0>(test.param)) + "_" +
                                  std::get<1>(test.param).name;
                         });

TEST_P(ConvertGpu, EncodesEveryElementTypeAsTheCpu) {
  for (const DType dtype : kDTypes) {
    ASSERT_NO_FATAL_FAILURE(ExpectAsCpuInWidth(GivenHow(), dtype, 1.0f, kTile + 77));
  }
}

TEST_P(ConvertGpu, ScalesAndObeysPoliciesAsTheCpu) {
  ArrayConversion how = GivenHow();
  how.conversion.overflow = Overflow::kSaturate;
  how.conversion.subnormals = Subnormals::kFlushToZero;
  how.first_index = (uint64_t{5} << 35) - 1000;  // the Philox counter carries into its second word
  const float inf = std::numeric_limits<float>::infinity();
  for (const float scale : {1.0f, 0x1p-20f, 2e15f, 0.0f, inf}) {
    how.scale = scale;
    for (const float grad_scale : {1.0f, 1024.0f, 3.0f, 0.0f}) {
      ASSERT_NO_FATAL_FAILURE(ExpectAsCpuInWidth(how, DType::kF32, grad_scale, kTile))
          << scale << " " << grad_scale;
    }
  }
}

TEST(ConvertGpuShapes, EncodesEveryLengthAndAlignment) {
  emulation::Reset();
  for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kStochastic}) {
    for (size_t offset = 0; offset < 9; ++offset) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{8}, size_t{9}, kTile - 1,
                                 kTile, kTile + 1, 2 * kTile, 3 * kTile + 1}) {
        for (const DType dtype : kDTypes) {
          const Offsets offsets = {offset, (offset * 3) % 9};
          const ArrayConversion how = How(kFp16, rounding);
          ASSERT_NO_FATAL_FAILURE(ExpectAsCpu<uint16_t>(how, dtype, 8.0f, count, offsets))
              << "offset " << offset;
        }
      }
    }
  }
}

template <class Code>
void ExpectDecodesAsCpu(const Format& format, size_t count, const Offsets& offsets) {
  std::vector<std::byte> bytes = Elements(DType::kF32, count * sizeof(Code) / 4 + 1, 5);
  bytes.resize(count * sizeof(Code));
  std::vector<Code> codes(count);
  if (count > 0) std::memcpy(codes.data(), bytes.data(), bytes.size());
  const DeviceBytes from(bytes, offsets.codes * sizeof(Code));
  const DeviceBytes to(count * sizeof(float), offsets.values * sizeof(float));
  Decode(format, from.data(), reinterpret_cast<float*>(to.data()), count, nullptr);
  std::vector<float> expected(count);
  DecodeArray(format, std::span<const Code>(codes), expected);
  const std::vector<uint32_t> actual = to.Read<uint32_t>();
  for (size_t i = 0; i < count; ++i) {
    ASSERT_EQ(actual[i], std::bit_cast<uint32_t>(expected[i])) << codes[i] << " " << i;
  }
}

void ExpectDecodesAsCpuInWidth(const Format& format, size_t count, const Offsets& offsets = {}) {
  if (CodeBytes(format) == 2) {
    ExpectDecodesAsCpu<uint16_t>(format, count, offsets);
  } else {
    ExpectDecodesAsCpu<uint32_t>(format, count, offsets);
  }
}

TEST(ConvertGpuShapes, DecodesEveryFormatLengthAndAlignment) {
  emulation::Reset();
  for (const NamedFormat& format : FormatsUnderTest()) {
    // These include all codes of 16 bits.
    ASSERT_NO_FATAL_FAILURE(ExpectDecodesAsCpuInWidth(format.format, 4 * 65536)) << format.name;
    for (size_t offset = 0; offset < 9; ++offset) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{9}, kTile, 2 * kTile + 3}) {
        ASSERT_NO_FATAL_FAILURE(
            ExpectDecodesAsCpuInWidth(format.format, count, {offset, (offset * 3) % 9}))
            << format.name;
      }
    }
  }
}

TEST(ConvertGpuShapes, DecodesEveryCodeOfTheTunedFormats) {
  emulation::Reset();
  std::vector<uint16_t> codes(65536);
  std::vector<std::byte> bytes(2 * codes.size());
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i);
  std::memcpy(bytes.data(), codes.data(), bytes.size());
  const DeviceBytes from(bytes, 0), to(4 * codes.size(), 0);
  for (const Format& format : {kFp16, kBf16, kCb16}) {
    Decode(format, from.data(), reinterpret_cast<float*>(to.data()), codes.size(), nullptr);
    std::vector<float> expected(codes.size());
    DecodeArray(format, std::span<const uint16_t>(codes), expected);
    const std::vector<uint32_t> actual = to.Read<uint32_t>();
    for (size_t i = 0; i < codes.size(); ++i) {
      ASSERT_EQ(actual[i], std::bit_cast<uint32_t>(expected[i])) << i;
    }
  }
}

TEST(ConvertGpuCalls, OnlyLaunch) {
  if (!emulation::kIsEmulated) GTEST_SKIP() << emulation::kNeeded;
  emulation::Reset();
  const DeviceBytes values(4 * 1000, 0), codes(2 * 1000, 0);
  const DeviceTensor tensor = {values.data(), 1000, DType::kF32, codes.data()};
  const TensorList list(std::span(&tensor, 1));
  const emulation::CallCounts before = emulation::Counts();
  const ArrayConversion how = How(kFp16, Rounding::kStochastic);
  Encode(how, tensor, nullptr);
  Encode(how, list, nullptr);
  Decode(kFp16, codes.data(), reinterpret_cast<float*>(values.data()), 1000, nullptr);
  const emulation::CallCounts after = emulation::Counts();
  EXPECT_EQ(after.launches, before.launches + 3);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.synchronizations, before.synchronizations);
  EXPECT_EQ(after.copies, before.copies);
}

TEST(ConvertGpuCalls, NoElementsAreNoLaunch) {
  emulation::Reset();
  Encode(How(kFp16, Rounding::kNearestEven), DeviceTensor(), nullptr);
  const std::vector<DeviceTensor> empty(3);
  Encode(How(kFp16, Rounding::kNearestEven), TensorList(empty), nullptr);
  Encode(How(kFp16, Rounding::kNearestEven), TensorList({}), nullptr);
  Decode(kFp16, nullptr, nullptr, 0, nullptr);
  EXPECT_EQ(emulation::Counts().launches, 0u);
}

// Returns what a call throws.
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

TEST(ConvertGpuCalls, WrongArgumentsAreNamed) {
  if (!emulation::kIsEmulated) GTEST_SKIP() << emulation::kNeeded;
  emulation::Reset({.device_count = 2});
  const DeviceBytes memory(64, 0);
  float host[8] = {};
  ArrayConversion how = How(kFp16, Rounding::kNearestEven);
  const auto encode = [&](const DeviceTensor& tensor) {
    return MessageOf([&] { Encode(how, tensor, nullptr); });
  };
  float* const values = reinterpret_cast<float*>(memory.data());
  EXPECT_EQ(encode({nullptr, 8, DType::kF32, values}),
            "dlsim::gpu::Encode: values are a null pointer");
  EXPECT_EQ(encode({values, 8, DType::kF32, nullptr}),
            "dlsim::gpu::Encode: codes are a null pointer");
  EXPECT_EQ(encode({memory.data() + 2, 8, DType::kF32, values}),
            "dlsim::gpu::Encode: values are misaligned, expected a multiple of 4 bytes, got one "
            "of 2");
  EXPECT_EQ(encode({values, 8, DType::kF32, memory.data() + 1}),
            "dlsim::gpu::Encode: codes are misaligned, expected a multiple of 2 bytes, got one of "
            "1");
  EXPECT_EQ(encode({host, 8, DType::kF32, values}),
            "dlsim::gpu::Encode: values are not in device memory");
  EXPECT_EQ(MessageOf([&] { Decode(kFp16, memory.data(), host, 8, nullptr); }),
            "dlsim::gpu::Decode: values are not in device memory");
  EXPECT_EQ(MessageOf([&] { Decode(kFormats[5].format, memory.data() + 2, values, 8, nullptr); }),
            "dlsim::gpu::Decode: codes are misaligned, expected a multiple of 4 bytes, got one of "
            "2");
  how.first_index = 4;
  EXPECT_EQ(encode({values, 8, DType::kF32, values}),
            "dlsim::gpu::Encode: bad first_index, expected a multiple of 8, got 4");
  how.first_index = 0;
  const CurrentDevice other(1);
  EXPECT_EQ(encode({values, 8, DType::kF32, values}),
            "dlsim::gpu::Encode: memory of a device that is not the current one, expected device "
            "1, got device 0");
  EXPECT_EQ(emulation::Counts().launches, 0u);
}

TEST(ConvertGpuCalls, FailedLaunchIsNamed) {
  if (!emulation::kIsEmulated) GTEST_SKIP() << emulation::kNeeded;
  emulation::Reset();
  const DeviceBytes memory(64, 0);
  emulation::FailCall("cudaLaunchKernelEx", 1, cudaErrorLaunchOutOfResources);
  const std::string message = MessageOf([&] {
    Encode(How(kCb16, Rounding::kTowardZero), {memory.data(), 4, DType::kF32, memory.data() + 32},
           nullptr);
  });
  EXPECT_EQ(message.rfind("dlsim::gpu::Encode: ", 0), 0u) << message;
}

}  // namespace
}  // namespace dlsim::gpu
