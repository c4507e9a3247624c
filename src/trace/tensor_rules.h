// SPDX-License-Identifier: Apache-2.0
// Shapes and roles of tensors, and the few metadata strings of a recording that dlsim understands:
// the rules that every container shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
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

// Metadata; all that is not named here is free text.

using Metadata = std::map<std::string, std::string>;

// Returns the non-negative number under `key`, or nothing if there is none. Throws InputError.
std::optional<int64_t> MetadataNumber(const std::string& place, const Metadata& metadata,
                                      const std::string& key);

// Sets grad_scale from the metadata and refuses what dlsim would misread. Throws InputError.
void ApplyMetadata(const std::string& place, Recording& recording);

// Throws InputError unless the metadata agrees with what the file's name and neighbors say: the
// micro-steps of the step, and the ranks of each.
void CheckPosition(const Recording& recording, int64_t step, size_t micro_steps, size_t ranks);

// Returns the names that metadata list under a key, one a line; and names as metadata list them.
std::set<std::string> ListedIn(const Metadata& metadata, std::string_view key);
std::string ListOf(const std::set<std::string>& names);

// The key that tells which axis of an activation's gradient holds features where the number of axes
// does not: lines of an axis, counted from 0, and a name, as "1 conv.act_grad"; "?" for one not
// known.
inline constexpr std::string_view kFeatureAxesKey = "feature_axes";

// Nothing if the axis is not known.
using FeatureAxis = std::optional<size_t>;

// Returns what the recordings of a step say, by the name of the tensor.
std::map<std::string, FeatureAxis> FeatureAxes(const TraceStep& step);

}  // namespace dlsim
