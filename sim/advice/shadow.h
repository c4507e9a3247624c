// SPDX-License-Identifier: Apache-2.0
// Reads what the recorder has found by running steps again in formats.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "dlsim/codec.h"
#include "dlsim/sim/forward.h"

namespace dlsim::sim {

// Returns what the text under kShadowKey (docs/traces.md) says of a format; nothing from an empty
// text, of a format that was not run, and of other conversions than autocast's: rounding to nearest
// with subnormals and infinity. Throws InputError for a damaged text.
std::optional<Shadow> ShadowIn(std::string_view text, const std::string& format,
                               const Conversion& conversion);

// Returns why the recorder could run no step, if the text says that.
std::string WhyNotRun(std::string_view text);

}  // namespace dlsim::sim
