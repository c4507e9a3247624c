// SPDX-License-Identifier: Apache-2.0
// The element types that recorded gradients may have.
#pragma once

#include <array>
#include <cstddef>

#include "dlsim/enum_names.h"
#include "dlsim/host_device.h"

namespace dlsim {

// Little-endian.
enum class DType { kF32, kF64, kF16, kBF16 };

// As in safetensors.
constexpr auto EnumNames(DType) {
  return std::to_array<EnumName<DType>>(
      {{DType::kF32, "F32"}, {DType::kF64, "F64"}, {DType::kF16, "F16"}, {DType::kBF16, "BF16"}});
}

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

}  // namespace dlsim
