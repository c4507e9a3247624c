// SPDX-License-Identifier: Apache-2.0
// The element types that recorded gradients may have.
#pragma once

#include <cstddef>

#include "dlsim/host_device.h"

namespace dlsim {

// Little-endian.
enum class DType { kF32, kF64, kF16, kBF16 };

// Returns the size of one element in bytes.
DLSIM_HOST_DEVICE constexpr size_t DTypeSize(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 8;
    case DType::kF32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
  }
  return 0;
}

// Returns the name that safetensors uses: "F32", "F64", "F16", "BF16".
const char* DTypeName(DType dtype);

}  // namespace dlsim
