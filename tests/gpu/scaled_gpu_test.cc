// SPDX-License-Identifier: Apache-2.0
// Scaled formats on the emulated device equal those on the CPU, bit for bit.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/gpu/scaled.h"
#include "dlsim/scaled_codec.h"
#include "emulation.h"
#include "gpu/base/check_cuda.h"
#include "tests/gpu/device_arrays.h"

namespace dlsim::gpu {
namespace {

constexpr BlockAxis kAxes[] = {BlockAxis::kRow, BlockAxis::kColumn, BlockAxis::kBoth};

struct Shape {
  uint64_t rows = 0, columns = 0;
};

// A matrix of any type, and what it is encoded to.
struct Case {
  NamedScaledFormat named;
  BlockAxis axis = BlockAxis::kRow;
  Shape shape;
  DType dtype = DType::kF32;
  float grad_scale = 1.0f;
  std::optional<float> scale = {};
};

bool IsPossible(const ScaledFormat& format, BlockAxis axis) {
  return axis != BlockAxis::kBoth || format.sharing == Sharing::kBlock;
}

// Numbers of which each block has some 30 binades, and rows of zeros.
std::vector<std::byte> Numbers(const Shape& shape) {
  std::mt19937 random(7);
  std::vector<std::byte> bytes(shape.rows * shape.columns * sizeof(float));
  for (size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
    const int exponent = static_cast<int>(random() % 30) - 20;
    const float fraction = static_cast<float>(random()) * 0x1p-32f - 0.5f;
    const float value = i / shape.columns % 3 == 2 ? 0 : std::ldexp(fraction, exponent);
    std::memcpy(&bytes[i * sizeof(float)], &value, sizeof(float));
  }
  return bytes;
}

void ExpectAsCpu(const Case& c, const std::vector<std::byte>& elements) {
  const ScaledFormat& format = c.named.format;
  const auto [rows, columns] = c.shape;
  const std::vector<float> floats = FloatsOf(c.dtype, c.grad_scale, elements);
  const ScaledCodes expected =
      dlsim::EncodeScaled(format, format.forward, {floats, rows, columns}, c.axis, c.scale);
  ASSERT_EQ(CountScales(format, rows, columns, c.axis), expected.scales.size());
  const bool has_tensor_scale = format.scale == ScaleType::kFp8;
  const DeviceBytes values(elements, 0), codes(expected.codes.size(), 0),
      scales(4 * expected.scales.size(), 0), tensor_scale(has_tensor_scale ? 4 : 0, 0),
      decoded(4 * expected.codes.size(), 0);
  const DeviceScaledCodes to = {
      reinterpret_cast<uint8_t*>(codes.data()), reinterpret_cast<uint32_t*>(scales.data()),
      has_tensor_scale ? reinterpret_cast<float*>(tensor_scale.data()) : nullptr};
  EncodeScaled(format, format.forward, {values.data(), rows, columns, c.dtype, c.grad_scale},
               c.axis, to, nullptr, c.scale);
  DecodeScaled(format, format.forward, to, rows, columns, c.axis,
               reinterpret_cast<float*>(decoded.data()), nullptr);
  CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  EXPECT_EQ(codes.Read<uint8_t>(), expected.codes);
  EXPECT_EQ(scales.Read<uint32_t>(), expected.scales);
  if (has_tensor_scale) {
    EXPECT_EQ(tensor_scale.Read<float>()[0], expected.tensor_scale);
  }
  std::vector<float> results(floats.size());
  dlsim::DecodeScaled(format, format.forward, expected, rows, columns, c.axis, results);
  const std::vector<uint32_t> bits = decoded.Read<uint32_t>();
  for (size_t i = 0; i < bits.size(); ++i) {
    ASSERT_EQ(bits[i], std::bit_cast<uint32_t>(results[i])) << "element " << i;
  }
}

class ScaledGpu : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { emulation::Reset(); }
};
INSTANTIATE_TEST_SUITE_P(All, ScaledGpu,
                         testing::Values("fp8-current", "fp8-current:margin=3,pow2=1,forward=e5m2",
                                         "fp8-rowwise", "fp8-block", "fp8-block:block=24,pow2=0",
                                         "mxfp8", "mxfp8:rule=floor,block=48",
                                         "mxfp8:rule=nearest,forward=e5m2", "mxfp6-e2m3:rule=even",
                                         "mxfp6-e3m2", "mxfp4", "nvfp4", "nvfp4:forward=e4m3"),
                         [](const auto& test) { return "Format" + std::to_string(test.index); });

TEST_P(ScaledGpu, EncodesAndDecodesAsTheCpu) {
  const NamedScaledFormat named = ParseScaledFormat(GetParam());
  for (const BlockAxis axis : kAxes) {
    if (!IsPossible(named.format, axis)) continue;
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 40}, Shape{70, 33}, Shape{130, 144}}) {
      SCOPED_TRACE(named.name + " axis " + std::to_string(static_cast<int>(axis)) + " " +
                   std::to_string(shape.rows) + " x " + std::to_string(shape.columns));
      Case c = {named, axis, shape};
      ASSERT_NO_FATAL_FAILURE(ExpectAsCpu(c, Numbers(shape)));
      // Infinities, NaN and all exponents.
      const size_t count = shape.rows * shape.columns;
      ASSERT_NO_FATAL_FAILURE(ExpectAsCpu(c, Elements(DType::kF32, count, 3)));
    }
  }
}

TEST_P(ScaledGpu, TakesEveryType) {
  const NamedScaledFormat named = ParseScaledFormat(GetParam());
  for (const DType dtype : {DType::kF64, DType::kF16, DType::kBF16}) {
    SCOPED_TRACE(named.name + " " + std::string(NameOf(dtype)));
    const Case c = {named, BlockAxis::kRow, {5, 64}, dtype, 8.0f};
    ASSERT_NO_FATAL_FAILURE(ExpectAsCpu(c, Elements(dtype, 320, 1)));
  }
}

TEST(ScaledGpuArguments, AScaleMayBeGiven) {
  emulation::Reset();
  for (const float scale : {1.0f, 3.0f, 0x1p-20f}) {
    const Case c = {
        ParseScaledFormat("fp8-delayed"), BlockAxis::kRow, {7, 50}, DType::kF32, 1.0f, scale};
    ASSERT_NO_FATAL_FAILURE(ExpectAsCpu(c, Numbers(c.shape)));
  }
}

TEST(ScaledGpuArguments, BadOnesAreRefused) {
  emulation::Reset();
  const ScaledFormat rows = ParseScaledFormat("fp8-rowwise").format;
  const ScaledFormat nvfp4 = ParseScaledFormat("nvfp4").format;
  const DeviceBytes values(64, 0), codes(16, 0), scales(16, 0);
  const DeviceMatrix matrix = {values.data(), 4, 4};
  DeviceScaledCodes to = {reinterpret_cast<uint8_t*>(codes.data()),
                          reinterpret_cast<uint32_t*>(scales.data()), nullptr};
  const auto encode = [&](const ScaledFormat& format, BlockAxis axis) {
    EncodeScaled(format, format.forward, matrix, axis, to, nullptr);
  };
  EXPECT_THROW(encode(rows, BlockAxis::kBoth), Error);
  EXPECT_THROW(encode(nvfp4, BlockAxis::kRow), Error);  // without a place for the tensor's scale
  EXPECT_NO_THROW(encode(rows, BlockAxis::kRow));
  to.scales = nullptr;
  EXPECT_THROW(encode(rows, BlockAxis::kRow), Error);
  EXPECT_NO_THROW(EncodeScaled(rows, rows.forward, {}, BlockAxis::kRow, {}, nullptr));
}

}  // namespace
}  // namespace dlsim::gpu
