// SPDX-License-Identifier: Apache-2.0
#include "dlsim/dtype.h"

namespace dlsim {

const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF64:
      return "F64";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      break;
  }
  return "BF16";
}

}  // namespace dlsim
