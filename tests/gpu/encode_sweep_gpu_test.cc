// SPDX-License-Identifier: Apache-2.0
// Encoders on a device against the host over all 2^32 float32 inputs, and tensors with more than
// 2^32 elements. Skipped without a device.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/gpu.h"
#include "gpu/base/cuda.h"
#include "src/base/parallel.h"
#include "tests/exhaustive/proof_formats.h"
#include "tests/gpu/sweep_stride.h"

namespace dlsim::gpu {
namespace {

constexpr uint64_t kAllInputs = uint64_t{1} << 32;
constexpr size_t kPart = 1 << 26;  // inputs at once

// Input i of a sweep: an order of all bit patterns whose first ones are a sample of all binades.
// Runs of 2^run_bits neighbors keep warps uniform; with 0, threads meet values of all kinds.
uint32_t InputBits(uint64_t i, uint32_t run_bits) {
  const uint32_t position = static_cast<uint32_t>(i), run = position >> run_bits;
  return ((run * 0x9E3779B1u) << run_bits) | (position & ((1u << run_bits) - 1));
}

// Part after part of a sweep, in memory that is kept: page faults would take longer than the rest.
template <class Code>
class SweptPart {
 public:
  explicit SweptPart(size_t most) : values_(most), actual_(most), expected_(most) {}

  // Takes the inputs [first, first + count).
  void Fill(uint64_t first, size_t count, uint32_t run_bits) {
    ParallelForBlocks(count, [&](size_t begin, size_t length) {
      for (size_t i = begin; i < begin + length; ++i) {
        values_.data()[i] = std::bit_cast<float>(InputBits(first + i, run_bits));
      }
    });
  }

  void CopyTo(float* device, size_t length) const {
    Copy(device, values_.data(), length * sizeof(float), cudaMemcpyHostToDevice);
  }

  // Compares codes in device memory with what the host makes of the first `length` values.
  void ExpectAsHost(const ArrayConversion& how, size_t length, const Code* codes) const {
    const std::span<Code> expected = expected_.span().first(length);
    EncodeArray(how, values_.span().first(length), expected);
    Copy(actual_.data(), codes, length * sizeof(Code), cudaMemcpyDeviceToHost);
    std::atomic<size_t> wrong = length;
    ParallelForBlocks(length, [&](size_t begin, size_t block) {
      const auto first = expected.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto found =
          std::mismatch(first, first + static_cast<std::ptrdiff_t>(block), actual_.data() + begin);
      if (found.first != first + static_cast<std::ptrdiff_t>(block)) {
        wrong = static_cast<size_t>(found.first - expected.begin());
      }
    });
    if (const size_t i = wrong; i < length) {
      FAIL() << "element " << how.first_index + i << std::hex << ", input "
             << std::bit_cast<uint32_t>(values_.data()[i]) << ": got " << actual_.data()[i]
             << ", expected " << expected[i];
    }
  }

 private:
  static void Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    CheckCuda(cudaMemcpy(to, from, bytes, kind), "cudaMemcpy");
    CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  PinnedBuffer<float> values_;
  PinnedBuffer<Code> actual_, expected_;
};

template <class Code>
void ExpectSweptAsHost(ArrayConversion how, uint64_t inputs, uint32_t run_bits) {
  const DeviceBuffer<float> values(kPart);
  const DeviceBuffer<Code> codes(kPart);
  SweptPart<Code> part(kPart);
  for (; how.first_index < inputs; how.first_index += kPart) {
    const size_t count = std::min<uint64_t>(kPart, inputs - how.first_index);
    part.Fill(how.first_index, count, run_bits);
    part.CopyTo(values.data(), count);
    DeviceTensor tensor = {values.data(), count, DType::kF32, codes.data()};
    Encode(how, tensor, nullptr);
    ASSERT_NO_FATAL_FAILURE(part.ExpectAsHost(how, count, codes.data()));
  }
}

class EncodeSweepGpu : public testing::TestWithParam<std::tuple<NamedFormat, NamedRounding>> {};
INSTANTIATE_TEST_SUITE_P(All, EncodeSweepGpu,
                         testing::Combine(testing::ValuesIn(ProofFormats()),
                                          testing::ValuesIn(kRoundings)),
                         [](const auto& test) {
                           return TestName(std::get<0>(test.param)) + "_" +
                                  std::get<1>(test.param).name;
                         });

// A device takes all inputs of fp16, bf16 and cb16, and a part under the other rules for overflow
// and subnormals and of other formats; all with DLSIM_EXHAUSTIVE=full.
TEST_P(EncodeSweepGpu, EveryInputAsTheHost) {
  const auto& [format, rounding] = GetParam();
  for (const Conversion& conversion : ConversionsTo(format.format, rounding.rounding)) {
    const bool is_plain = conversion.overflow == Overflow::kInfinity;
    const bool all =
        IsTuned(format.format) && is_plain && conversion.subnormals == Subnormals::kKeep;
    const uint64_t inputs = kAllInputs / (all ? 1 : SweepStride());
    const ArrayConversion how = {conversion, 1.0f, {0x243F6A8885A308D3, 7}, 0};
    const auto sweep =
        CodeBytes(format.format) == 2 ? ExpectSweptAsHost<uint16_t> : ExpectSweptAsHost<uint32_t>;
    ASSERT_NO_FATAL_FAILURE(sweep(how, inputs, is_plain ? 8 : 0));
  }
}

TEST(LargeTensorGpu, EncodesAndTabulatesMoreThan32BitsCount) {
  const uint64_t count = kAllInputs + kPart / 64 + 5;
  size_t free = 0, total = 0;
  CheckCuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  if (free / (sizeof(float) + sizeof(uint16_t) + 1) < count) GTEST_SKIP() << "too little memory";
  const DeviceBuffer<float> values(count);
  const DeviceBuffer<uint16_t> codes(count);
  SweptPart<uint16_t> part(kPart);
  part.Fill(0, kPart, 0);
  const auto for_parts = [&](const auto& body) {
    for (uint64_t first = 0; first < count; first += kPart) {
      body(first, std::min<uint64_t>(kPart, count - first));
    }
  };
  for_parts([&](uint64_t first, size_t length) { part.CopyTo(values.data() + first, length); });
  const DeviceTensor tensor = {values.data(), count, DType::kF32, codes.data()};
  const ArrayConversion how = {{kCb16, Rounding::kStochastic}, 1.0f, {3, 9}, 0};
  Encode(how, tensor, nullptr);
  for_parts([&](uint64_t first, size_t length) {
    ArrayConversion of_part = how;
    of_part.first_index = first;
    part.ExpectAsHost(of_part, length, codes.data() + first);
  });
  const std::vector<TensorTable> tables = Tabulate({&tensor, 1}, nullptr);
  EXPECT_EQ(tables[0].elements, count);
}

}  // namespace
}  // namespace dlsim::gpu
