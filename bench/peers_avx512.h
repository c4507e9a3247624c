// SPDX-License-Identifier: Apache-2.0
// Peers that only a compiler for AVX-512 makes fast; see peers.cc for the check of the machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dlsim::bench {

// The hardware's own conversion in the plainest loop: what fp16 kernels are measured against. The
// number of elements is a multiple of 64.
void EncodeFp16ByHardware(const float* values, size_t count, uint16_t* codes);
void DecodeFp16ByHardware(const uint16_t* codes, size_t count, float* values);

// Casts of Eigen arrays.
void EncodeFp16ByEigen(const float* values, size_t count, uint16_t* codes);
void DecodeFp16ByEigen(const uint16_t* codes, size_t count, float* values);
void EncodeBf16ByEigen(const float* values, size_t count, uint16_t* codes);
void DecodeBf16ByEigen(const uint16_t* codes, size_t count, float* values);

}  // namespace dlsim::bench
