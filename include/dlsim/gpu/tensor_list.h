// SPDX-License-Identifier: Apache-2.0
// Many tensors of different sizes in device memory, for calls that work on all of them in one
// launch, as optimizers do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "dlsim/dtype.h"

// CUDA's own name, so that public headers need no CUDA header.
struct CUstream_st;

namespace dlsim::gpu {

using Stream = CUstream_st*;  // cudaStream_t; null is the default stream

// An array in device memory that the caller owns.
struct DeviceTensor {
  const void* values = nullptr;  // aligned to its element size; null only if there are no elements
  uint64_t elements = 0;
  DType dtype = DType::kF32;   // kF32, kF16 or kBF16; kF64 is rounded to float32 first
  void* codes = nullptr;       // where Encode writes, as many elements; null elsewhere
  float grad_scale = 1.0f;     // values are multiplied by its float32 reciprocal unless it is 1
  uint32_t random_stream = 0;  // see RandomStream, for stochastic rounding
};

struct Piece;  // gpu/base/device_code.h

// Descriptions of tensors on the device that holds them: made once, used by any number of calls for
// as long as the tensors stay where they are. Its constructor allocates and waits; calls do not.
class TensorList {
 public:
  // Throws Error that names the tensor if a pointer is misaligned, no memory of a device, or of
  // another device than the others; and if there is too little memory.
  explicit TensorList(std::span<const DeviceTensor> tensors);
  TensorList(TensorList&&) noexcept;
  TensorList& operator=(TensorList&&) noexcept;
  ~TensorList();

  size_t tensor_count() const;
  uint64_t element_count() const;
  int device() const;

  // Throws Error for `call` that names a tensor without memory for codes of 2 or 4 bytes.
  void CheckCodes(std::string_view call, size_t code_bytes) const;

  // For the kernels: the pieces of all tensors, in order, in device memory.
  const Piece* pieces() const;
  uint32_t piece_count() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dlsim::gpu
