// SPDX-License-Identifier: Apache-2.0
// Pieces of JSON that several results share.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "dlsim/sim/loss_scaler.h"

namespace dlsim::sim {

using Json = nlohmann::ordered_json;

// A number, or the text "inf", "-inf" or "nan", which JSON numbers cannot express.
Json JsonNumber(double value);
Json JsonNumber(int64_t value);
Json JsonNumber(uint64_t value);
Json JsonNumber(int value);

// The object {name: value, ...} of parameters or of a state.
Json JsonFields(std::span<const NamedValue> fields);

// Text on one line, or indented; bytes that are not UTF-8 are replaced, hidden characters escaped.
std::string DumpJson(const Json& value, int indent = -1);

}  // namespace dlsim::sim
