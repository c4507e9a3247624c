// SPDX-License-Identifier: Apache-2.0
// The unit of work of a thread block.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dlsim/dtype.h"
#include "dlsim/gpu/tensor_list.h"
#include "dlsim/measure.h"

namespace dlsim::gpu {

// At most kBlockElements consecutive elements of one tensor, all in device memory. Pieces begin at
// multiples of kBlockElements, as the blocks in whose order sums are added do.
struct Piece {
  const std::byte* values = nullptr;  // the first element; null = none (a part that is absent)
  void* codes = nullptr;              // of the tensor's first element, if codes are written
  uint64_t first_index = 0;           // of the first element in its tensor
  uint32_t count = 0;
  uint32_t tensor = 0;
  uint32_t random_stream = 0;
  float inverse_grad_scale = 1.0f;  // multiplies each value unless it is 1
  DType dtype = DType::kF32;
};

// Returns a piece of no elements at the beginning of the tensor.
inline Piece PieceOf(const DeviceTensor& tensor) {
  Piece piece;
  piece.values = static_cast<const std::byte*>(tensor.values);
  piece.codes = tensor.codes;
  piece.random_stream = tensor.random_stream;
  piece.inverse_grad_scale = tensor.grad_scale == 1.0f ? 1.0f : 1.0f / tensor.grad_scale;
  piece.dtype = tensor.dtype;
  return piece;
}

// Cuts `elements` of the tensor that `whole` is the beginning of, and appends the pieces.
inline void AppendPieces(const Piece& whole, uint64_t elements, std::vector<Piece>& pieces) {
  for (uint64_t begin = 0; begin < elements; begin += kBlockElements) {
    Piece& piece = pieces.emplace_back(whole);
    piece.values += begin * DTypeSize(whole.dtype);
    piece.first_index = begin;
    piece.count = static_cast<uint32_t>(std::min<uint64_t>(kBlockElements, elements - begin));
  }
}

}  // namespace dlsim::gpu
