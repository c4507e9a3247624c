// SPDX-License-Identifier: Apache-2.0
// What a tensor loses in a scaled format, as bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dlsim/scaled_codec.h"
#include "src/profile/bytes.h"

namespace dlsim {

// [format][tensor], as ProfileStep::scaled.
void PutLosses(const std::vector<std::vector<ScaledLoss>>& losses, std::string& out);
std::vector<std::vector<ScaledLoss>> TakeLosses(size_t formats, size_t tensors, ByteReader& in);

// Returns the most bytes that PutLosses writes for these numbers of formats and tensors; the
// largest uint64_t if that is smaller.
uint64_t MaxLossBytes(uint64_t formats, uint64_t tensors);

}  // namespace dlsim
