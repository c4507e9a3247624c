// SPDX-License-Identifier: Apache-2.0
// Formats of options where float32 is a choice like the others: of weights, states and sums.
#pragma once

#include <optional>
#include <string>

#include "dlsim/format.h"

namespace dlsim::sim {

// Reads the name of a format; nothing for fp32. Throws UsageError, which names `place`.
std::optional<NamedFormat> ParseFormatOrFp32(const std::string& place, const std::string& name);

}  // namespace dlsim::sim
