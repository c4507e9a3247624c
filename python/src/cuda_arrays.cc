// SPDX-License-Identifier: Apache-2.0
#include "dlsim/gpu/convert.h"
#include "dlsim/gpu/measure.h"
#include "gpu/base/device_buffer.h"
#include "python/src/device_arrays.h"

namespace dlsim::python {

void RequireCuda(const std::string&, int) {}

void EncodeOnDevice(const DeviceQueue& queue, const ArrayConversion& how,
                    const gpu::DeviceTensor& tensor) {
  const gpu::CurrentDevice current(queue.device);
  gpu::Encode(how, tensor, queue.stream);
}

void DecodeOnDevice(const DeviceQueue& queue, const Format& format, const void* codes,
                    float* values, uint64_t count) {
  const gpu::CurrentDevice current(queue.device);
  gpu::Decode(format, codes, values, count, queue.stream);
}

std::vector<TensorStats> MeasureOnDevice(const DeviceQueue& queue, const gpu::DeviceTensor& tensor,
                                         std::span<const Measurement> questions) {
  if (tensor.elements == 0) return std::vector<TensorStats>(questions.size());
  const gpu::CurrentDevice current(queue.device);
  const gpu::TensorList list({&tensor, 1});
  gpu::Measurer measurer(list, questions.size());
  measurer.Measure(questions, queue.stream);
  gpu::CheckCuda(cudaStreamSynchronize(queue.stream), "cudaStreamSynchronize");
  const std::span<const TensorStats> results = measurer.host_results();
  return {results.begin(), results.end()};
}

}  // namespace dlsim::python
