// SPDX-License-Identifier: Apache-2.0
// What channels lose as bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dlsim/channels.h"
#include "src/profile/bytes.h"

namespace dlsim {

void PutCurves(std::span<const ChannelCurves> curves, std::string& out);

// Takes `count` of them. Throws InputError for bytes that no curves have.
std::vector<ChannelCurves> TakeCurves(size_t count, ByteReader& in);

// The most bytes that `count` of them take; saturates.
uint64_t MaxCurveBytes(uint64_t count);

}  // namespace dlsim
