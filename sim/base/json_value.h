// SPDX-License-Identifier: Apache-2.0
// Pieces of JSON that several results share.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace dlsim::sim {

using Json = nlohmann::ordered_json;

// Text on one line, or indented; bytes that are not UTF-8 are replaced, hidden characters escaped.
std::string DumpJson(const Json& value, int indent = -1);

}  // namespace dlsim::sim
