// SPDX-License-Identifier: Apache-2.0
// The few metadata strings of a recording that dlsim understands; all others are free text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "dlsim/trace.h"

namespace dlsim {

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
