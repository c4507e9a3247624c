// SPDX-License-Identifier: Apache-2.0
// The arrays that are measured and profiled.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/check/host_tensor.h"

namespace dlsim::gpu_check {

enum class DataSet : uint8_t { kNormal, kGrad };

// kNormal: N(0,1). kGrad: N(0,1) * 2^U{-36..3}, of which fp16 makes a third subnormal or zero.
std::vector<float> DrawValues(DataSet data, uint64_t count, uint64_t seed);

// Both data sets in sizes around those of chunks and blocks, special values, every element type,
// recorded under a gradient scale or not; the largest has `most` elements.
std::vector<HostTensor> CheckedTensors(uint64_t most);

// Every float tensor of the .safetensors files below a folder, by path. Throws Error if there is
// none or a file is not read.
std::vector<HostTensor> TraceTensors(const std::string& folder);

}  // namespace dlsim::gpu_check
