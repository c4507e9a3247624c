// SPDX-License-Identifier: Apache-2.0
// Shapes and roles of tensors: the rules that every container shares.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "dlsim/trace.h"

namespace dlsim {

constexpr uint64_t kMaxTensors = 1'000'000;
constexpr uint64_t kMaxRank = 32;
constexpr uint64_t kMaxNameBytes = 4096;

// Returns the number of elements, or nothing if the product of the non-zero dimensions times
// `item_bytes` does not fit 64 bits. A zero dimension thus hides no overflow of the others.
std::optional<uint64_t> ElementCount(std::span<const uint64_t> shape, uint64_t item_bytes);

// Returns the shape as Python writes a list: "[2, 3]".
std::string ShapeText(std::span<const uint64_t> shape);

// Returns the role that the end of a name tells: ".act_grad", ".act" or, of Cerebras, ".fwd", and
// ".value". Any other name is that of a parameter gradient.
Role RoleOfName(std::string_view name);

// Returns `place: tensor 'name'`, printable.
std::string TensorPlace(std::string_view place, std::string_view name);

// Returns the number that `text` spells in decimal digits, or nothing; at most 18 digits.
std::optional<int64_t> ParseDigits(std::string_view text);

}  // namespace dlsim
