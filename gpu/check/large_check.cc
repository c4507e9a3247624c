// SPDX-License-Identifier: Apache-2.0
// A tensor with more elements than 32 bits count.
#include <algorithm>

#include "dlsim/gpu/convert.h"
#include "dlsim/gpu/measure.h"
#include "gpu/check/checks.h"
#include "gpu/check/encode_sweep.h"
#include "gpu/check/input_order.h"

namespace dlsim::gpu_check {
namespace {

constexpr uint64_t kElements = kAllInputs + (uint64_t{1} << 20) + 5;
constexpr uint64_t kPart = uint64_t{1} << 28;

bool HasMemory() {
  size_t free = 0, total = 0;
  gpu::CheckCuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free / (sizeof(float) + sizeof(uint16_t) + 1) > kElements;
}

std::string CompareParts(const ArrayConversion& how, const gpu::DeviceTensor& tensor,
                         gpu::Stream stream) {
  for (uint64_t first = 0; first < kElements; first += kPart) {
    ArrayConversion part = how;
    part.first_index = first;
    const auto* values = static_cast<const float*>(tensor.values) + first;
    const auto* codes = static_cast<const uint16_t*>(tensor.codes) + first;
    const uint64_t count = std::min(kPart, kElements - first);
    const Comparison comparison = CompareOnDevice(part, values, codes, count, stream);
    if (comparison.mismatches == 0) continue;
    return "element " + std::to_string(first + comparison.first_mismatch) + " and more";
  }
  return "";
}

}  // namespace

void CheckLargeTensor(const Options& options, Report& report) {
  if (options.inputs < kAllInputs) return;
  if (!HasMemory()) {
    report.AddNote("large: a tensor of more than 2^32 elements not run, too little memory");
    return;
  }
  const gpu::OwnedStream stream;
  const gpu::DeviceBuffer<float> values(kElements);
  const gpu::DeviceBuffer<uint16_t> codes(kElements);
  FillSweep(0, kElements, 0, values.data(), stream.get());
  gpu::DeviceTensor tensor;
  tensor.values = values.data();
  tensor.elements = kElements;
  tensor.codes = codes.data();
  tensor.random_stream = 9;
  const gpu::TensorList list({&tensor, 1});
  const ArrayConversion how = {{kCb16, Rounding::kStochastic}, 1.0f, {3, 9}, 0};
  gpu::Encode(how, tensor, stream.get());
  report.Add({"large", "encode a tensor of more than 2^32 elements", kElements,
              CompareParts(how, tensor, stream.get())});
  // So that the codes from before do not pass for those of the list.
  gpu::CheckCuda(cudaMemsetAsync(codes.data(), 0xA5, codes.size_bytes(), stream.get()),
                 "cudaMemsetAsync");
  gpu::Encode(how, list, stream.get());
  report.Add({"large", "encode a list with more than 2^32 elements", kElements,
              CompareParts(how, tensor, stream.get())});
  gpu::Measurer measurer(list, 1);
  const Measurement question = {{kFp16}, 1.0f, {}};
  measurer.Measure({&question, 1}, stream.get());
  gpu::CheckCuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
  const uint64_t measured = measurer.host_results()[0].elements;
  report.Add({"large", "measure a tensor of more than 2^32 elements", kElements,
              measured == kElements ? "" : "elements: got " + std::to_string(measured)});
}

}  // namespace dlsim::gpu_check
