// SPDX-License-Identifier: Apache-2.0
// Parameters that may be None in Python, and those that the original keeps as int32.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "dlsim/sim/loss_scaler.h"
#include "sim/policies/settings.h"

namespace dlsim::sim {

// Returns nothing for "none", "None" and "null"; otherwise as Settings::Number.
std::optional<double> OptionalNumber(const Settings& settings, std::string_view name);

// Returns the value as a parameter shows it: a number or "none".
NamedValue OptionalValue(std::string_view name, std::optional<double> value);

// As Settings::Integer; throws Error (exit code 2) for what int32 cannot hold.
int32_t Int32(const Settings& settings, std::string_view name);

}  // namespace dlsim::sim
