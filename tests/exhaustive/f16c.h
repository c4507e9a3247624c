// SPDX-License-Identifier: Apache-2.0
// The x86 instruction that converts float32 to fp16: an oracle made by somebody else.
#pragma once

#include <cstdint>
#include <span>

namespace dlsim {

// Whether this machine has it.
bool HasF16c();

// To nearest even, as the instruction does.
void EncodeByF16c(std::span<const float> values, std::span<uint16_t> codes);

}  // namespace dlsim
