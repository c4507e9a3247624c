// SPDX-License-Identifier: Apache-2.0
#include "src/trace/listed_names.h"

#include <sstream>

namespace dlsim {

std::set<std::string> ListedIn(const std::map<std::string, std::string>& metadata,
                               std::string_view key) {
  std::set<std::string> names;
  const auto listed = metadata.find(std::string(key));
  if (listed == metadata.end()) return names;
  std::istringstream lines(listed->second);
  for (std::string name; std::getline(lines, name);) {
    if (!name.empty()) names.insert(name);
  }
  return names;
}

std::string ListOf(const std::set<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : "\n") + name;
  return list;
}

}  // namespace dlsim
