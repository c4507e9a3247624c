// SPDX-License-Identifier: Apache-2.0
// What a step or a conversion hands to a device other than the CPU. The results are those of the
// CPU, digit for digit; dlsim/gpu/ has the implementation for CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/format.h"
#include "src/table/tabulate.h"

namespace dlsim {

// At most kBlockElements consecutive elements of a tensor.
struct DevicePiece {
  size_t table = 0;  // that the values belong to
  uint32_t count = 0;

  // Where they lie on the device, of which type, and the loss scale they carry; null: float32
  // values of the host.
  const std::byte* on_device = nullptr;
  DType dtype = DType::kF32;
  float grad_scale = 1.0f;
};

// Pieces whose values the host finds together. Those of a table follow each other in a list of
// blocks.
struct DeviceBlock {
  std::vector<DevicePiece> pieces;

  // Writes the values of each piece; `to` has an empty span for those on the device. Thread-safe.
  std::function<void(std::span<const std::span<float>> to)> fill = {};
};

// Not for several threads at once. Throws Error (exit code 3) that names the call if the device
// fails or has too little memory.
class ComputeDevice {
 public:
  virtual ~ComputeDevice() = default;

  virtual std::string name() const = 0;  // "cuda:0 (NVIDIA H200)"

  // Tabulates all values times `scale`. Calls take(table, sums) for all tables that blocks have
  // values of, on the calling thread, for some of them more than once: sums add up. Each holds at
  // most 2^30 values. Blocks are filled on all threads while the device works.
  using TakeSums = std::function<void(size_t table, TableSums& sums)>;
  virtual void Tabulate(std::span<const DeviceBlock> blocks, float scale, const TakeSums& take) = 0;

  // Copies from memory of the device.
  virtual void Read(const std::byte* from, std::span<std::byte> to) = 0;

  // Converts arrays in host memory as EncodeArray and DecodeArray do; copies overlap kernels.
  // `bytes` are elements of `dtype`, at any alignment; values are unscaled by nothing. Codes have 2
  // bytes for formats of at most 16 bits, else 4.
  virtual void Encode(const ArrayConversion& how, DType dtype, std::span<const std::byte> bytes,
                      std::span<std::byte> codes) = 0;
  virtual void Decode(const Format& format, std::span<const std::byte> codes,
                      std::span<float> values) = 0;
};

}  // namespace dlsim
