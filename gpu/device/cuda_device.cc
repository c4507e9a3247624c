// SPDX-License-Identifier: Apache-2.0
#include "gpu/device/cuda_device.h"

#include <utility>

#include "gpu/device/convert_host_array.h"
#include "gpu/device/tabulate_blocks.h"
#include "src/base/check.h"

namespace dlsim::gpu {

CudaDevice::CudaDevice(int index, std::string name) : index_(index), name_(std::move(name)) {}

void CudaDevice::Tabulate(std::span<const DeviceBlock> blocks, float scale, const TakeSums& take) {
  const CurrentDevice current(index_);
  TabulateBlocks(slots_, blocks, scale, take);
}

void CudaDevice::Read(const std::byte* from, std::span<std::byte> to) {
  const CurrentDevice current(index_);
  CheckCuda(cudaMemcpy(to.data(), from, to.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
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
