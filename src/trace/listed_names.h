// SPDX-License-Identifier: Apache-2.0
// What the metadata of a recording list.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

namespace dlsim {

// Returns the names that the metadata of a recording list under a key, one a line.
std::set<std::string> ListedIn(const std::map<std::string, std::string>& metadata,
                               std::string_view key);

// Returns names as metadata list them.
std::string ListOf(const std::set<std::string>& names);

}  // namespace dlsim
