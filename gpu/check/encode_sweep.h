// SPDX-License-Identifier: Apache-2.0
// Encodes float32 inputs by the kernels and compares every code.
#pragma once

#include <cstdint>
#include <string>

#include "dlsim/convert.h"
#include "gpu/base/device_buffer.h"
#include "gpu/check/code_compare.h"

namespace dlsim::gpu_check {

// Memory of sweeps on the current device, made once.
class EncodeSweep {
 public:
  explicit EncodeSweep(uint64_t most_inputs);

  struct Result {
    uint64_t hash = 0;    // of all codes; see HashOfSweep
    std::string problem;  // the first difference, with the number of them in its part
  };

  // Sweeps over the first `inputs` elements of the order that `run_bits` says.
  Result Run(const ArrayConversion& how, uint32_t run_bits, uint64_t inputs);

 private:
  std::string Describe(const ArrayConversion& how, const Comparison& comparison) const;

  gpu::OwnedStream stream_;
  gpu::DeviceBuffer<float> values_;
  gpu::DeviceBuffer<uint32_t> codes_;  // of 2 or 4 bytes each
};

// Compares `count` values and codes on the device, as EncodeSweep does.
Comparison CompareOnDevice(const ArrayConversion& how, const float* values, const void* codes,
                           uint64_t count, gpu::Stream stream);

}  // namespace dlsim::gpu_check
