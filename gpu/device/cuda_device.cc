// SPDX-License-Identifier: Apache-2.0
#include "gpu/device/cuda_device.h"

#include <utility>

#include "gpu/device/convert_host_array.h"
#include "gpu/device/count_work.h"
#include "gpu/device/measure_work.h"
#include "src/base/check.h"
#include "src/histogram/histogram_sums.h"

namespace dlsim::gpu {

CudaDevice::CudaDevice(int index, std::string name) : index_(index), name_(std::move(name)) {}

std::unique_ptr<DeviceWork> CudaDevice::Measure(
    const StepWork& work, std::function<void(size_t tensor, const BlockAnswer& answer)> on_answer) {
  return std::make_unique<MeasureWork>(index_, slots_, work, std::move(on_answer));
}

std::unique_ptr<DeviceWork> CudaDevice::Count(const StepWork& work, const HistogramEdges& edges,
                                              std::span<HistogramSums> sums) {
  return std::make_unique<CountWork>(index_, slots_, counters_, work, edges, sums);
}

void CudaDevice::Encode(const ArrayConversion& how, DType dtype, std::span<const std::byte> bytes,
                        std::span<uint16_t> codes) {
  DLSIM_CHECK(CodeBits(how.conversion.format) <= 16);
  const CurrentDevice current(index_);
  EncodeHostArray(slots_, how, dtype, bytes, codes);
}

void CudaDevice::Encode(const ArrayConversion& how, DType dtype, std::span<const std::byte> bytes,
                        std::span<uint32_t> codes) {
  const CurrentDevice current(index_);
  EncodeHostArray(slots_, how, dtype, bytes, codes);
}

void CudaDevice::Decode(const Format& format, std::span<const uint16_t> codes,
                        std::span<float> values) {
  DLSIM_CHECK(CodeBits(format) <= 16);
  const CurrentDevice current(index_);
  DecodeHostArray(slots_, format, codes, values);
}

void CudaDevice::Decode(const Format& format, std::span<const uint32_t> codes,
                        std::span<float> values) {
  const CurrentDevice current(index_);
  DecodeHostArray(slots_, format, codes, values);
}

}  // namespace dlsim::gpu
