// SPDX-License-Identifier: Apache-2.0
// Turns recorded elements of any supported type into float32.
#pragma once

#include <cstddef>
#include <span>

#include "dlsim/trace.h"

namespace dlsim {

// Converts out.size() elements, at most kChunkElements, at `from` (any alignment) and divides by
// the loss scale they still carry, as a multiplication with its float32 reciprocal. F64 rounds to
// nearest even.
void LoadFloats(DType dtype, const std::byte* from, float grad_scale, std::span<float> out);

}  // namespace dlsim
