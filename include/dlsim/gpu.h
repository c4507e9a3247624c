// SPDX-License-Identifier: Apache-2.0
// The CUDA devices of the machine, and what converts and tabulates arrays in their memory. Codes,
// values and tables are those that EncodeArray, DecodeArray and Tabulate give on the CPU, bit for
// bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/table.h"

// CUDA's own name, so that public headers need no CUDA header.
struct CUstream_st;

namespace dlsim {
class ComputeDevice;
}

namespace dlsim::gpu {

struct DeviceInfo {
  int index = 0;
  std::string name;            // as the driver gives it
  int compute_capability = 0;  // 10 * major + minor
  uint64_t memory_bytes = 0;
};

struct DeviceList {
  std::vector<DeviceInfo> devices;
  std::string problem;  // why there are none: no driver, none visible, built without CUDA
};

// Never throws: a machine without a driver has no devices, nor has a build without CUDA, in which
// opening one is an error and the functions below are missing.
DeviceList Devices();

// Opens a device for replays, profiles and conversions. Throws Error (exit code 3) in one line if
// no device has that index, or if it cannot be used.
std::unique_ptr<ComputeDevice> OpenDevice(int index);

using Stream = CUstream_st*;  // cudaStream_t; null is the default stream

// An array in device memory that the caller owns.
struct DeviceTensor {
  const void* values = nullptr;  // aligned to its element size; null only if there are no elements
  uint64_t elements = 0;
  DType dtype = DType::kF32;  // kF32, kF16 or kBF16; kF64 is rounded to float32 first
  void* codes = nullptr;      // where Encode writes, as many elements; null elsewhere
  float grad_scale = 1.0f;    // values are multiplied by its float32 reciprocal unless it is 1
};

// The size of a code in memory: 2 bytes for formats of at most 16 bits, else 4.
constexpr size_t CodeBytes(const Format& format) { return CodeBits(format) <= 16 ? 2 : 4; }

// Conversions only launch on the stream: they neither allocate nor wait, and can be captured in a
// CUDA graph.

// Encodes the values of one tensor into its `codes`. Its `grad_scale` is applied first; then values
// are multiplied by how.scale in float32. The random bits are those of how.random and
// how.first_index. Pointers of 16 bytes' alignment are fastest. Throws Error naming the call if
// an argument is wrong or the launch fails.
void Encode(const ArrayConversion& how, const DeviceTensor& tensor, Stream stream);

// Decodes `count` codes of CodeBytes(format) each.
void Decode(const Format& format, const void* codes, float* values, uint64_t count, Stream stream);

// Returns the table of each tensor, after the work that is in the stream. Memory is of the current
// device. Allocates, and waits for the results. Throws Error that names the call if an argument is
// wrong or a launch fails.
std::vector<TensorTable> Tabulate(std::span<const DeviceTensor> tensors, Stream stream);

}  // namespace dlsim::gpu
