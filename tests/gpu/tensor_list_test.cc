// SPDX-License-Identifier: Apache-2.0
// Many tensors in one launch give what each gives by itself, and wrong lists are refused.
#include "dlsim/gpu/tensor_list.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/gpu/convert.h"
#include "emulation.h"
#include "gpu/base/piece.h"
#include "tests/gpu/device_arrays.h"

namespace dlsim::gpu {
namespace {

// Tensors with memory for their codes.
struct Tensors {
  std::vector<std::vector<std::byte>> elements;
  std::vector<std::unique_ptr<DeviceBytes>> values, codes;
  std::vector<DeviceTensor> list;

  void Add(DType dtype, size_t count, size_t offset, size_t code_bytes) {
    const uint32_t number = static_cast<uint32_t>(list.size());
    elements.push_back(Elements(dtype, count, number));
    values.push_back(std::make_unique<DeviceBytes>(elements.back(), offset * DTypeSize(dtype)));
    codes.push_back(std::make_unique<DeviceBytes>(count * code_bytes, offset * code_bytes));
    list.push_back({values.back()->data(), count, dtype, codes.back()->data(),
                    number % 3 == 0 ? 1.0f : 512.0f, 1000 + number});
  }
};

// Some hundred tensors, most of them small, a few of several pieces, some of them misaligned.
Tensors MixedTensors(size_t count, size_t code_bytes) {
  constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};
  constexpr size_t kSizes[] = {0, 1, 10, 100, 4096, 1000, 5000, 7, 65536, 2048, 65537, 140000};
  Tensors tensors;
  for (size_t i = 0; i < count; ++i) {
    const size_t size = i < 250 ? kSizes[i % 8] + i : kSizes[i % 12];
    tensors.Add(kDTypes[i % 7 % 4], size, i % 5 == 4 ? 1 + i % 3 : 0, code_bytes);
  }
  return tensors;
}

template <class Code>
void ExpectEachAsCpu(const ArrayConversion& how, const Tensors& tensors) {
  for (size_t i = 0; i < tensors.list.size(); ++i) {
    ArrayConversion own = how;
    own.random.stream = tensors.list[i].random_stream;
    const std::vector<Code> expected =
        OnCpu<Code>(own, tensors.list[i].dtype, tensors.list[i].grad_scale, tensors.elements[i]);
    ASSERT_EQ(tensors.codes[i]->Read<Code>(), expected) << "tensor " << i;
  }
}

class TensorListOrder : public testing::TestWithParam<emulation::ThreadOrder> {};
INSTANTIATE_TEST_SUITE_P(Orders, TensorListOrder,
                         testing::Values(emulation::ThreadOrder::kAscending,
                                         emulation::ThreadOrder::kDescending,
                                         emulation::ThreadOrder::kShuffled));

TEST_P(TensorListOrder, ThreeHundredTensorsAsEachByItselfInOneLaunch) {
  emulation::Reset();
  emulation::SetThreadOrder(GetParam(), 3);
  for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kStochastic}) {
    const Tensors tensors = MixedTensors(300, 2);
    const TensorList list(tensors.list);
    ArrayConversion how = {{kFp16, rounding}, 1024.0f, {99, 0}, 80};
    const uint64_t before = emulation::Counts().launches;
    Encode(how, list, nullptr);
    if (emulation::kIsEmulated) {
      EXPECT_EQ(emulation::Counts().launches, before + 1);
    }
    ASSERT_NO_FATAL_FAILURE(ExpectEachAsCpu<uint16_t>(how, tensors));
  }
}

TEST(TensorListTest, WideCodesOfPiecesLieOneAfterAnother) {
  emulation::Reset();
  const Tensors tensors = MixedTensors(12, 4);
  const ArrayConversion how = {{kFormats[5].format, Rounding::kNearestEven}};
  const TensorList list(tensors.list);
  Encode(how, list, nullptr);
  ExpectEachAsCpu<uint32_t>(how, tensors);
}

TEST(TensorListTest, CutsTensorsIntoPiecesInOrder) {
  emulation::Reset();
  Tensors tensors;
  tensors.Add(DType::kF32, 65536 + 1, 0, 2);
  tensors.Add(DType::kF16, 0, 0, 2);
  tensors.Add(DType::kBF16, 3, 0, 2);
  const TensorList list(tensors.list);
  EXPECT_EQ(list.tensor_count(), 3u);
  EXPECT_EQ(list.element_count(), 65540u);
  EXPECT_EQ(list.device(), 0);
  ASSERT_EQ(list.piece_count(), 3u);
  std::vector<Piece> pieces(3);
  CheckCuda(cudaMemcpy(pieces.data(), list.pieces(), 3 * sizeof(Piece), cudaMemcpyDeviceToHost),
            "cudaMemcpy");
  EXPECT_EQ(pieces[1].values, tensors.values[0]->data() + 4 * 65536);
  EXPECT_EQ(pieces[1].first_index, 65536u);
  EXPECT_EQ(pieces[1].count, 1u);
  EXPECT_EQ(pieces[1].tensor, 0u);
  EXPECT_EQ(pieces[2].tensor, 2u);
  EXPECT_EQ(pieces[2].dtype, DType::kBF16);
  EXPECT_EQ(pieces[2].inverse_grad_scale, 1.0f / 512.0f);
}

// Copies from pageable memory may end after the call, in the default stream.
TEST(TensorListTest, IsThereForStreamsThatDoNotWaitForTheDefaultOne) {
  emulation::Reset();
  const Tensors tensors = MixedTensors(8, 2);
  const TensorList list(tensors.list);
  const OwnedStream stream;
  Encode({{kFp16}}, list, stream.get());
  EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  ExpectEachAsCpu<uint16_t>({{kFp16}}, tensors);
}

std::string MessageOf(const std::vector<DeviceTensor>& tensors) {
  const size_t live = emulation::Live().total();
  try {
    const TensorList list(tensors);
    Encode({{kFp16}}, list, nullptr);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    EXPECT_EQ(emulation::Live().total(), live);
    return error.what();
  }
  return "nothing";
}

TEST(TensorListTest, WrongTensorsAreNamed) {
  if (!emulation::kIsEmulated) GTEST_SKIP() << emulation::kNeeded;
  emulation::Reset({.device_count = 2});
  const DeviceBytes memory(64, 0);
  std::byte* const here = memory.data();
  const DeviceTensor good = {here, 8, DType::kF32, here + 32};
  float host[8] = {};
  const std::string place = "dlsim::gpu::TensorList: ";
  EXPECT_EQ(MessageOf({good, {host, 8, DType::kF32, here}}),
            place + "values of tensor 1 are not in device memory");
  EXPECT_EQ(MessageOf({good, {here, 8, DType::kF32, host}}),
            place + "codes of tensor 1 are not in device memory");
  EXPECT_EQ(MessageOf({good, {}, {nullptr, 8, DType::kF32, here}}),
            place + "values of tensor 2 are a null pointer");
  EXPECT_EQ(MessageOf({good, {here + 1, 8, DType::kF16, here}}),
            place +
                "values of tensor 1 are misaligned, expected a multiple of 2 bytes, got one "
                "of 1");
  EXPECT_EQ(MessageOf({good, {here, 8, DType::kF32, nullptr}}),
            "dlsim::gpu::Encode: codes of tensor 1 are a null pointer or misaligned, expected a "
            "multiple of 2 bytes");
  const CurrentDevice second(1);
  const DeviceBytes elsewhere(64, 0);
  EXPECT_EQ(MessageOf({good, {elsewhere.data(), 8, DType::kF32, elsewhere.data()}}),
            place +
                "values of tensor 1 are on another device than those before, expected device "
                "0, got device 1");
  EXPECT_EQ(MessageOf({{here, 8, DType::kF32, elsewhere.data()}}),
            place +
                "codes of tensor 0 are on another device than its values, expected device 0, "
                "got device 1");
  EXPECT_EQ(MessageOf({good}),
            "dlsim::gpu::Encode: memory of a device that is not the current one, expected device "
            "1, got device 0");
}

TEST(TensorListTest, FailuresWhileMakingItLeakNothing) {
  if (!emulation::kIsEmulated) GTEST_SKIP() << emulation::kNeeded;
  for (const char* call : {"cudaMalloc", "cudaMemcpy"}) {
    emulation::Reset();
    const DeviceBytes memory(64, 0);
    emulation::FailCall(call, 1, cudaErrorMemoryAllocation);
    EXPECT_NE(MessageOf({{memory.data(), 8, DType::kF32, memory.data()}}), "nothing");
    EXPECT_EQ(emulation::FailedCall(), call);
  }
}

}  // namespace
}  // namespace dlsim::gpu
