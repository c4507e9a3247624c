// SPDX-License-Identifier: Apache-2.0
// Arrays in host memory from which those on the device are made, and what the CPU finds of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/dtype.h"
#include "dlsim/histogram.h"
#include "dlsim/measure.h"
#include "histogram_sums.h"

namespace dlsim::gpu_check {

struct HostTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::byte> bytes;
  float grad_scale = 1.0f;
  uint32_t random_stream = 0;

  uint64_t elements() const { return bytes.size() / DTypeSize(dtype); }
};

HostTensor TensorOf(std::string name, std::span<const float> values);

// Returns the elements as float32, divided by the tensor's grad_scale as docs/gpu.md says.
std::vector<float> ValuesOf(const HostTensor& tensor);

// What Encode makes of each element.
std::vector<uint32_t> EncodeReference(const ArrayConversion& how, std::span<const float> values);

// What Measure finds, chunk by chunk from the definition, merged in the order of measure.h.
TensorStats MeasureReference(std::span<const float> values, const Measurement& question);

// What a HistogramCounter finds, value by value.
HistogramSums CountReference(std::span<const float> values, const HistogramEdges& edges);

// Describe the first difference; empty = none, down to the last bit.
std::string Difference(const TensorStats& got, const TensorStats& expected);
std::string Difference(const HistogramSums& got, const HistogramSums& expected);

}  // namespace dlsim::gpu_check
