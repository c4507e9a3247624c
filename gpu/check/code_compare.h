// SPDX-License-Identifier: Apache-2.0
// Compares codes in device memory with the scalar reference, which runs there too.
#pragma once

#include <cstdint>

#include "dlsim/convert.h"
#include "dlsim/gpu/stream.h"

namespace dlsim::gpu_check {

struct Comparison {
  unsigned long long mismatches = 0;
  unsigned long long hash = 0;    // the sum of MixCode over what was compared
  uint32_t first_mismatch = ~0u;  // index of the first mismatch, if there is any
};

// Writes elements first ... first + count - 1 of a sweep.
void FillSweep(uint64_t first, uint64_t count, uint32_t run_bits, float* values,
               gpu::Stream stream);

// Adds to *result, which is in device memory, the comparison of `codes` (of CodeBytes each) with
// Encode of the `values` as they are; both on the device, at most 2^31 of them.
void CompareCodes(const ArrayConversion& how, const float* values, const void* codes,
                  uint64_t count, Comparison* result, gpu::Stream stream);

}  // namespace dlsim::gpu_check
