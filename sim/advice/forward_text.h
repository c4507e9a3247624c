// SPDX-License-Identifier: Apache-2.0
// The verdict on the forward pass in words.
#pragma once

#include <cstddef>
#include <string>

#include "sim/advice/advice.h"

namespace dlsim::sim {

// Returns what is said of a format whose verdict is Verdict::kFitsInForward.
std::string ForwardFit(const FormatAdvice& format);

// Returns what fails of a format whose verdict is Verdict::kFailsInForward.
std::string ForwardFailure(const FormatAdvice& format);

// Returns what else is to be said of what was looked at: recorded values that do not count. Empty,
// or begins with a blank.
std::string ForwardExceptions(const Advice& advice);

// Returns the forward tensors at risk in the first format that has any and does not fail; empty
// if none has.
std::string ForwardRisk(const Advice& advice);

// Returns the evidence: a table of the formats, and the `top` tensors that overflow in each; empty
// if no forward tensor was recorded.
std::string FormatForwardDetails(const Advice& advice, size_t top);

}  // namespace dlsim::sim
