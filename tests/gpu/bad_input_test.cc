// SPDX-License-Identifier: Apache-2.0
// Wrong devices, too little memory, wrong pointers, lost devices and empty tensors: an error that
// names the call, and nothing left behind.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/gpu/convert.h"
#include "dlsim/gpu/tensor_list.h"
#include "dlsim/histogram.h"
#include "gpu/base/piece.h"
#include "gpu/count/wave_counter.h"
#include "src/histogram/histogram_sums.h"
#include "tests/gpu/emulated_test.h"
#include "tests/gpu/failures.h"

namespace dlsim::gpu {
namespace {

class BadInput : public EmulatedTest {};

const ArrayConversion kToFp16 = {{kFp16, Rounding::kNearestEven}};

// Tensors of some sizes, one of them empty, with memory for their codes.
struct Tensors {
  Tensors() {
    for (const size_t count : {size_t{5}, size_t{0}, size_t{70000}}) {
      values.push_back(ToDevice(std::vector<float>(count + 1, 1.5f)));
      codes.emplace_back(count + 1);
      list.push_back({values.back().data(), count, DType::kF32, codes.back().data()});
      Piece whole = PieceOf(list.back());
      whole.tensor = static_cast<uint32_t>(list.size() - 1);
      AppendPieces(whole, count, pieces);
    }
  }

  std::vector<DeviceBuffer<float>> values;
  std::vector<DeviceBuffer<uint16_t>> codes;
  std::vector<DeviceTensor> list;
  std::vector<Piece> pieces;
};

constexpr size_t kMostPieces = 8;

const HistogramEdges& SomeEdges() {
  static const HistogramEdges edges({});
  return edges;
}

TEST_F(BadInput, ConstructorsThatFailLeaveNothingBehind) {
  const Tensors tensors;
  const HistogramEdges& edges = SomeEdges();
  for (const auto& [name, error] :
       {std::pair("", cudaErrorMemoryAllocation), std::pair("", cudaErrorECCUncorrectable),
        std::pair("cudaGetDevice", cudaErrorUnknown)}) {
    FailEachCall(name, error, [&] { TensorList failing(tensors.list); });
    FailEachCall(name, error, [&] { WaveCounter failing(edges, kMostPieces); });
  }
  EXPECT_GE(FailEachCall("cudaMalloc", cudaErrorMemoryAllocation,
                         [&] { TensorList failing(tensors.list); }),
            1u);
  for (const char* name : {"cudaMalloc", "cudaHostAlloc"}) {
    EXPECT_GE(FailEachCall(name, cudaErrorMemoryAllocation,
                           [&] { WaveCounter failing(edges, kMostPieces); }),
              3u);
  }
  EXPECT_GE(FailEachCall("cudaPointerGetAttributes", cudaErrorUnknown,
                         [&] { TensorList failing(tensors.list); }),
            4u);
}

TEST_F(BadInput, TooLittleMemoryIsOneLine) {
  emulation::Reset({.memory_bytes = 1000000});
  const Tensors tensors;
  const HistogramEdges& edges = SomeEdges();
  std::vector<DeviceBuffer<std::byte>> rest;
  size_t free = 0;
  size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  rest.emplace_back(free - 64);
  const std::string of_counter = MessageOf([&] { WaveCounter counter(edges, kMostPieces); });
  EXPECT_TRUE(StartsWith(of_counter, "cudaMalloc(")) << of_counter;
  EXPECT_NE(of_counter.find(" bytes): out of memory, got cudaErrorMemoryAllocation"),
            std::string::npos)
      << of_counter;
  EXPECT_TRUE(StartsWith(MessageOf([&] { TensorList again(tensors.list); }), "cudaMalloc("));
}

TEST_F(BadInput, LaunchesThatFailNameTheCall) {
  const Tensors tensors;
  const TensorList list(tensors.list);
  WaveCounter counter(SomeEdges(), kMostPieces);
  const OwnedStream stream;
  const auto expect_failure = [&](const std::string& call, const auto& work, uint64_t launch = 1) {
    emulation::FailCall("cudaLaunchKernelEx", launch, cudaErrorLaunchOutOfResources);
    EXPECT_EQ(MessageOf(work), call +
                                   ": too many resources requested for launch, got "
                                   "cudaErrorLaunchOutOfResources");
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  };
  expect_failure("dlsim::gpu::Encode", [&] { Encode(kToFp16, tensors.list[0], stream.get()); });
  expect_failure("dlsim::gpu::Encode", [&] { Encode(kToFp16, list, stream.get()); });
  expect_failure("dlsim::gpu::Decode", [&] {
    Decode(kFp16, tensors.codes[0].data(), tensors.values[0].data(), 5, stream.get());
  });
  const auto count = [&] { counter.Launch(list.pieces(), tensors.pieces, stream.get()); };
  expect_failure("counting of pieces", count);
  expect_failure("compaction of counts", count, 2);
}

TEST_F(BadInput, HotCallsNeitherAllocateNorWait) {
  const Tensors tensors;
  const TensorList list(tensors.list);
  WaveCounter counter(SomeEdges(), kMostPieces);
  std::vector<HistogramSums> sums(tensors.list.size());
  const OwnedStream stream;
  for (int step = 0; step < 2; ++step) {
    {
      const ExpectOnlyLaunches check;
      Encode(kToFp16, tensors.list[2], stream.get());
    }
    {
      const ExpectOnlyLaunches check;
      Encode(kToFp16, list, stream.get());
    }
    {
      const ExpectOnlyLaunches check;
      Decode(kFp16, tensors.codes[2].data(), tensors.values[2].data(), 70000, stream.get());
    }
    {
      const ExpectOnlyLaunches check;
      counter.Launch(list.pieces(), tensors.pieces, stream.get());
    }
    CheckCuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
    counter.Collect(sums);
  }
}

TEST_F(BadInput, PointersThatCannotBeUsedAreNamed) {
  const Tensors tensors;
  const OwnedStream stream;
  std::vector<float> host(8);
  std::byte* const odd = reinterpret_cast<std::byte*>(tensors.values[0].data()) + 1;
  uint16_t* const codes = tensors.codes[0].data();
  const auto encode = [&](const void* values, void* to) {
    return MessageOf([&] {
      Encode(kToFp16, DeviceTensor{values, 5, DType::kF32, to}, stream.get());
    });
  };
  const auto decode = [&](const void* from, void* to) {
    return MessageOf([&] { Decode(kFp16, from, static_cast<float*>(to), 5, stream.get()); });
  };
  const std::string alignment = " are misaligned, expected a multiple of 4 bytes, got one of 1";
  EXPECT_EQ(encode(nullptr, codes), "dlsim::gpu::Encode: values are a null pointer");
  EXPECT_EQ(encode(odd, codes), "dlsim::gpu::Encode: values" + alignment);
  EXPECT_EQ(encode(host.data(), codes), "dlsim::gpu::Encode: values are not in device memory");
  EXPECT_EQ(encode(tensors.values[0].data(), nullptr),
            "dlsim::gpu::Encode: codes are a null pointer");
  EXPECT_EQ(decode(nullptr, tensors.values[0].data()),
            "dlsim::gpu::Decode: codes are a null pointer");
  EXPECT_EQ(decode(codes, odd), "dlsim::gpu::Decode: values" + alignment);
  EXPECT_EQ(decode(codes, host.data()), "dlsim::gpu::Decode: values are not in device memory");
  EXPECT_EQ(emulation::Counts().launches, 0u);
}

TEST_F(BadInput, MemoryAndStreamsOfOtherDevicesAreRefused) {
  emulation::Reset({.device_count = 2});
  const Tensors tensors;
  const CurrentDevice other(1);
  const OwnedStream other_stream;
  const std::string problem =
      ": memory of a device that is not the current one, expected device 1, got device 0";
  EXPECT_EQ(MessageOf([&] { Encode(kToFp16, tensors.list[0], other_stream.get()); }),
            "dlsim::gpu::Encode" + problem);
  EXPECT_EQ(MessageOf([&] {
              Decode(kFp16, tensors.codes[0].data(), tensors.values[0].data(), 5,
                     other_stream.get());
            }),
            "dlsim::gpu::Decode" + problem);
}

TEST_F(BadInput, NothingToDoIsNoLaunch) {
  const std::vector<DeviceTensor> empty_tensors(3);
  for (const auto& tensors : {std::vector<DeviceTensor>(), empty_tensors}) {
    const TensorList list(tensors);
    EXPECT_EQ(list.piece_count(), 0u);
    Encode(kToFp16, list, nullptr);
    WaveCounter counter(SomeEdges(), kMostPieces);
    counter.Launch(list.pieces(), {}, nullptr);
    counter.Collect({});
    EXPECT_EQ(emulation::Counts().launches, 0u);
  }
  const uint64_t launches = emulation::Counts().launches;
  Encode(kToFp16, DeviceTensor(), nullptr);
  Decode(kFp16, nullptr, nullptr, 0, nullptr);
  EXPECT_EQ(emulation::Counts().launches, launches);
}

TEST_F(BadInput, ALostDeviceIsAnErrorAndNoLeak) {
  const Tensors tensors;
  const TensorList list(tensors.list);
  const HistogramEdges& edges = SomeEdges();
  WaveCounter counter(edges, kMostPieces);
  emulation::FailKernel(2);
  counter.Launch(list.pieces(), tensors.pieces, nullptr);
  const std::string problem = ": an illegal memory access was encountered";
  const std::string message =
      MessageOf([] { CheckCuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize"); });
  EXPECT_TRUE(StartsWith(message, "cudaStreamSynchronize" + problem)) << message;
  const size_t live = emulation::Live().total();
  EXPECT_NE(MessageOf([&] { WaveCounter again(edges, kMostPieces); }).find(problem),
            std::string::npos);
  EXPECT_NE(MessageOf([&] { TensorList again(tensors.list); }).find(problem), std::string::npos);
  EXPECT_NE(MessageOf([&] { Encode(kToFp16, list, nullptr); }).find(problem), std::string::npos);
  EXPECT_EQ(emulation::Live().total(), live);
}

}  // namespace
}  // namespace dlsim::gpu
