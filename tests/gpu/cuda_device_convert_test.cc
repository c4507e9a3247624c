// SPDX-License-Identifier: Apache-2.0
// Arrays of the host that a device converts become what the CPU makes of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "dlsim/gpu/devices.h"
#include "dlsim/measure.h"
#include "emulation.h"
#include "src/device/compute_device.h"
#include "src/measure/load_floats.h"
#include "tests/gpu/device_traces.h"

namespace dlsim::gpu {
namespace {

// As LoadFloats, of any number of elements.
std::vector<float> FloatsOf(DType dtype, std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / DTypeSize(dtype));
  for (size_t begin = 0; begin < values.size(); begin += kChunkElements) {
    const size_t count = std::min(kChunkElements, values.size() - begin);
    LoadFloats(dtype, bytes.data() + begin * DTypeSize(dtype), 1.0f,
               std::span(values).subspan(begin, count));
  }
  return values;
}

class CudaDeviceConvert : public testing::Test {
 protected:
  CudaDeviceConvert() {
    emulation::Reset();
    device_ = OpenDevice(0);
  }

  template <class Code>
  void ExpectSame(const ArrayConversion& how, const BuiltTensor& tensor, DType dtype) {
    const std::string misaligned = " " + tensor.bytes;
    const std::span<const std::byte> bytes = Bytes(misaligned).subspan(1);
    const std::vector<float> values = FloatsOf(dtype, bytes);
    std::vector<Code> codes(values.size()), expected(values.size());
    device_->Encode(how, dtype, bytes, codes);
    EncodeArray(how, values, std::span<Code>(expected));
    EXPECT_EQ(codes, expected);
    const Format& format = how.conversion.format;
    std::vector<float> decoded(values.size()), expected_decoded(values.size());
    device_->Decode(format, std::span<const Code>(expected), decoded);
    DecodeArray(format, std::span<const Code>(expected), expected_decoded);
    EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(decoded)),
                                   std::as_bytes(std::span(expected_decoded))));
  }

  std::unique_ptr<ComputeDevice> device_;
};

constexpr std::pair<const char*, DType> kTypes[] = {
    {"F32", DType::kF32}, {"F16", DType::kF16}, {"BF16", DType::kBF16}, {"F64", DType::kF64}};

TEST_F(CudaDeviceConvert, EqualsTheCpuForAllTypesAndCodes) {
  const ArrayConversion plain = {.conversion = {kFp16}, .scale = 3.0f};
  const ArrayConversion wide = {.conversion = {ParseFormat("e8m22").format}};
  const ArrayConversion random = {.conversion = {kCb16, Rounding::kStochastic},
                                  .scale = 1024.0f,
                                  .random = {5, 6},
                                  .first_index = 16};
  for (const auto& [name, dtype] : kTypes) {
    for (const size_t count : {0u, 1u, 4097u}) {
      SCOPED_TRACE(std::string(name) + ", " + std::to_string(count));
      const BuiltTensor tensor = TensorAs(name, "x", ManyValues(count, 1));
      for (const ArrayConversion& how : {plain, random}) {
        ExpectSame<uint16_t>(how, tensor, dtype);
        ExpectSame<uint32_t>(how, tensor, dtype);
      }
      ExpectSame<uint32_t>(wide, tensor, dtype);
    }
  }
}

TEST_F(CudaDeviceConvert, EqualsTheCpuForSeveralPieces) {
  const ArrayConversion how = {.conversion = {kFp16, Rounding::kStochastic}, .random = {5, 6}};
  ExpectSame<uint16_t>(how, TensorAs("F16", "x", ManyValues((size_t{1} << 22) + 100, 1)),
                       DType::kF16);
}

TEST_F(CudaDeviceConvert, LeavesNothingBehindIfACallFails) {
  if (!emulation::kIsEmulated) GTEST_SKIP() << emulation::kNeeded;
  const BuiltTensor tensor = TensorAs("F32", "x", ManyValues(1000, 1));
  const ArrayConversion how = {.conversion = {kFp16}};
  std::vector<uint16_t> codes(1000);
  device_->Encode(how, DType::kF32, Bytes(tensor.bytes), codes);
  const size_t live = emulation::Live().total();
  for (uint64_t n = 1;; ++n) {
    emulation::FailCall("", n, cudaErrorUnknown);
    try {
      device_->Encode(how, DType::kF32, Bytes(tensor.bytes), codes);
      if (emulation::FailedCall().empty()) break;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
    }
    EXPECT_GE(emulation::Live().total(), live);
  }
  device_ = nullptr;
  EXPECT_EQ(emulation::Live().total(), 0u);
}

}  // namespace
}  // namespace dlsim::gpu
