// SPDX-License-Identifier: Apache-2.0
// The values of one recorded tensor, without holding it in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "dlsim/trace.h"

namespace dlsim {

// Calls visit(begin, values) for consecutive chunks (at most kChunkElements) of one tensor of one
// recording, as float32, unscaled by the loss scale that it carries. `begin` is the index of
// values[0].
void VisitValues(const Recording& recording, const TraceTensor& tensor,
                 const std::function<void(uint64_t begin, std::span<const float> values)>& visit);

}  // namespace dlsim
