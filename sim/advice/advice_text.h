// SPDX-License-Identifier: Apache-2.0
// Advice in words and as JSON.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/advice/advice.h"
#include "sim/base/rows.h"

namespace dlsim::sim {

// Returns what is said of a format whose verdict is Verdict::kFitsInForward, or kFailsInForward.
std::string ForwardFit(const FormatAdvice& format);
std::string ForwardFailure(const FormatAdvice& format);

// Returns such as "2^-3", and "1".
std::string Power(int exponent);

// One entry for each format, in the order of the call, in several lines where it fails; one on what
// was looked at; one on the tensors at risk if there are any.
std::vector<std::string> AdviceLines(const Advice& advice);

// What is said of one format, its name in this width: the verdict, and in further lines what to
// change where it fails.
std::string LineOn(const FormatAdvice& format, size_t width);

// The lines, as a report begins with them, each at most 80 columns wide.
std::string FormatAdviceLines(const Advice& advice);

// At how many steps each policy's scale was inside, below and above the windows, as a table; empty
// without policies.
std::string FormatPaths(const Advice& advice);

// The evidence: a table of the formats, what bounds their windows, and the `top` tensors at risk.
std::string FormatAdviceDetails(const Advice& advice, size_t top);

// The object "verdict" of advice that lives until it is told; `rounding`: of a sweep.
TellRows RowsOf(const Advice& advice, std::string_view rounding = "");
void AddAdviceKeys(std::vector<KeyTable>& tables);

}  // namespace dlsim::sim
