// SPDX-License-Identifier: Apache-2.0
// The optional trace.json of a step directory.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/trace/layout.h"

namespace dlsim {

struct TraceJson {
  std::optional<std::vector<std::string>> files;
  std::optional<std::vector<int64_t>> steps;
  RoleMap roles;
  std::map<std::string, std::string> description;  // every field that is a string
};

// Throws InputError. Fields with other names are free.
TraceJson ReadTraceJson(const std::string& path);

}  // namespace dlsim
