// SPDX-License-Identifier: Apache-2.0
// Which axis of an activation's gradient holds features, as a recording says it.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "dlsim/trace.h"

namespace dlsim {

// The key of a recording's metadata that says so for those whose number of axes does not tell:
// lines of an axis, counted from 0, and a name, as "1 conv.act_grad"; "?" for one not known.
inline constexpr std::string_view kFeatureAxesKey = "feature_axes";

// Nothing if the axis is not known.
using FeatureAxis = std::optional<size_t>;

// Returns what the recordings of a step say, by the name of the tensor.
std::map<std::string, FeatureAxis> FeatureAxes(const TraceStep& step);

}  // namespace dlsim
