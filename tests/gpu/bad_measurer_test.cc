// SPDX-License-Identifier: Apache-2.0
// Failures and empty tensors while measuring: an error that names the call, and nothing left
// behind.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/gpu/measure.h"
#include "dlsim/gpu/tensor_list.h"
#include "tests/gpu/emulated_test.h"
#include "tests/gpu/failures.h"

namespace dlsim::gpu {
namespace {

class BadMeasurement : public EmulatedTest {};

constexpr size_t kMostQuestions = 3;

const std::vector<Measurement>& Questions() {
  static const std::vector<Measurement> questions = {
      {{kFp16, Rounding::kNearestEven}, 1024.0f},
      {{kBf16, Rounding::kNearestEven}, 1.0f},
      {{kFp16, Rounding::kStochastic}, 2.0f, {7, 0}}};
  return questions;
}

// Tensors of some sizes, one of them empty.
struct Tensors {
  Tensors() {
    for (const size_t count : {size_t{5}, size_t{0}, size_t{70000}}) {
      values.push_back(ToDevice(std::vector<float>(count + 1, 1.5f)));
      list.push_back({values.back().data(), count, DType::kF32});
    }
  }

  std::vector<DeviceBuffer<float>> values;
  std::vector<DeviceTensor> list;
};

TEST_F(BadMeasurement, ConstructorsThatFailLeaveNothingBehind) {
  const Tensors tensors;
  const TensorList list(tensors.list);
  const auto construct = [&] { Measurer failing(list, kMostQuestions); };
  FailEachCall("", cudaErrorECCUncorrectable, construct);
  FailEachCall("cudaGetDevice", cudaErrorUnknown, construct);
  EXPECT_GE(FailEachCall("cudaMalloc", cudaErrorMemoryAllocation, construct), 1u);
  EXPECT_GE(FailEachCall("cudaHostAlloc", cudaErrorMemoryAllocation, construct), 1u);
}

TEST_F(BadMeasurement, CallsThatFailAreNamedAndTheNextSucceeds) {
  const Tensors tensors;
  const TensorList list(tensors.list);
  Measurer measurer(list, kMostQuestions);
  const OwnedStream stream;
  EXPECT_GE(FailEachCall("", cudaErrorLaunchOutOfResources,
                         [&] { measurer.Measure(Questions(), stream.get()); }),
            2u);
  CheckCuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
  EXPECT_EQ(measurer.host_results()[2].elements, 70000u);
}

TEST_F(BadMeasurement, StreamsOfOtherDevicesAreRefused) {
  emulation::Reset({.device_count = 2});
  const Tensors tensors;
  const TensorList list(tensors.list);
  Measurer measurer(list, kMostQuestions);
  const CurrentDevice other(1);
  const OwnedStream stream;
  EXPECT_NE(MessageOf([&] { measurer.Measure(Questions(), stream.get()); }), "");
  int device = 0;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 1);  // as the caller left it
}

TEST_F(BadMeasurement, TensorsWithoutElementsHaveEmptyStatistics) {
  const std::vector<DeviceTensor> empty_tensors(3);
  for (const auto& tensors : {std::vector<DeviceTensor>(), empty_tensors}) {
    const TensorList list(tensors);
    Measurer measurer(list, kMostQuestions);
    measurer.Measure(Questions(), nullptr);
    CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    EXPECT_EQ(measurer.host_results().size(), kMostQuestions * tensors.size());
    for (const TensorStats& stats : measurer.host_results()) EXPECT_EQ(stats.elements, 0u);
    measurer.Measure({}, nullptr);
    EXPECT_EQ(measurer.host_results().size(), 0u);
  }
}

}  // namespace
}  // namespace dlsim::gpu
