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

#include "boundaries.h"
#include "check_cuda.h"
#include "device_buffer.h"
#include "dlsim/convert.h"
#include "dlsim/error.h"
#include "dlsim/gpu/convert.h"
#include "dlsim/measure.h"
#include "emulation.h"
#include "exhaustive/proof_formats.h"
#include "load_floats.h"

namespace dlsim::gpu {
namespace {

constexpr size_t kTile = 4096;  // elements of a thread block
constexpr uint8_t kUntouched = 0xA5;

// Bytes in device memory, `offset` bytes past an aligned address, with some untouched ones after.
class DeviceBytes {
 public:
  DeviceBytes(size_t size, size_t offset)
      : size_(size), offset_(offset), bytes_(offset + size + 16) {
    CheckCuda(cudaMemset(bytes_.data(), kUntouched, bytes_.size()), "cudaMemset");
  }
  DeviceBytes(const std::vector<std::byte>& content, size_t offset)
      : DeviceBytes(content.size(), offset) {
    CheckCuda(cudaMemcpy(data(), content.data(), size_, cudaMemcpyHostToDevice), "cudaMemcpy");
  }

  std::byte* data() const { return bytes_.data() + offset_; }

  // Returns the content; fails if what is around it was touched.
  template <class T>
  std::vector<T> Read() const {
    std::vector<std::byte> all(bytes_.size());
    CheckCuda(cudaMemcpy(all.data(), bytes_.data(), all.size(), cudaMemcpyDeviceToHost), "read");
    for (size_t i = 0; i < all.size(); ++i) {
      if (i >= offset_ && i < offset_ + size_) continue;
      EXPECT_EQ(all[i], std::byte{kUntouched}) << "byte " << i << " of " << all.size();
    }
    std::vector<T> content(size_ / sizeof(T));
    std::memcpy(content.data(), all.data() + offset_, content.size() * sizeof(T));
    return content;
  }

 private:
  size_t size_, offset_;
  DeviceBuffer<std::byte> bytes_;
};

// Elements of all kinds: of each exponent and sign, among them NaN with payloads, infinities,
// zeros and subnormals.
std::vector<std::byte> Elements(DType dtype, size_t count, uint32_t salt) {
  std::vector<std::byte> bytes(count * DTypeSize(dtype));
  for (size_t i = 0; i < count; ++i) {
    const uint64_t mixed = (i + salt + 1) * 0x9E3779B97F4A7C15u;
    uint64_t element = mixed ^ (mixed >> 29);
    if (dtype == DType::kF64 && i % 4 != 0) {
      // Exponents that float32 has; and NaN, of which there would be few.
      const double value = std::bit_cast<float>(static_cast<uint32_t>(element >> 16));
      element = std::bit_cast<uint64_t>(value) ^ (element & 0xFFFFFFF);
    }
    std::memcpy(&bytes[i * DTypeSize(dtype)], &element, DTypeSize(dtype));
  }
  return bytes;
}

// What the CPU makes of it.
template <class Code>
std::vector<Code> OnCpu(const ArrayConversion& how, DType dtype, float grad_scale,
                        const std::vector<std::byte>& elements) {
  const size_t count = elements.size() / DTypeSize(dtype);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; i += kChunkElements) {
    const size_t length = std::min(kChunkElements, count - i);
    LoadFloats(dtype, &elements[i * DTypeSize(dtype)], grad_scale,
               std::span(values).subspan(i, length));
  }
  std::vector<Code> codes(count);
  EncodeArray(how, values, std::span<Code>(codes));
  return codes;
}

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
    ASSERT_EQ(actual[i], expected[i]) << DTypeName(dtype) << " element " << i << " of " << count;
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

}  // namespace
}  // namespace dlsim::gpu
