// SPDX-License-Identifier: Apache-2.0
// Advice in words and as JSON.
#pragma once

#include <string>
#include <vector>

#include "sim/advice/advice.h"
#include "sim/base/json_value.h"

namespace dlsim::sim {

// Returns such as "2^-3", and "1".
std::string Power(int exponent);

// One line for each format, in the order of the call; one on what was looked at; one on the tensors
// at risk if there are any.
std::vector<std::string> AdviceLines(const Advice& advice);

// The lines on one format of the advice: the verdict, and what to change where it fails.
std::vector<std::string> LinesOn(const FormatAdvice& format, const Advice& advice);

// The lines, as a report begins with them, each at most 80 columns wide.
std::string FormatAdviceLines(const Advice& advice);

// The evidence: a table of the formats, what bounds their windows, and the `top` tensors at risk.
std::string FormatAdviceDetails(const Advice& advice, size_t top);

// The object "verdict".
Json JsonAdvice(const Advice& advice);

}  // namespace dlsim::sim
