// SPDX-License-Identifier: Apache-2.0
// What a policy family reads its parameters with: the user's text or the table's default, typed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "dlsim/sim/policies.h"

namespace dlsim::sim {

// The settings of one policy. Every `name` must stand in the table.
struct Settings {
  std::string_view policy;  // for messages
  std::span<const ParameterInfo> table;
  const ParameterMap& given;

  bool Given(std::string_view name) const { return given.find(name) != given.end(); }
  std::string Text(std::string_view name) const;

  // These throw Error (exit code 2), naming the policy and the parameter.
  double Number(std::string_view name) const;
  int64_t Integer(std::string_view name) const;
  bool Bool(std::string_view name) const;

  // A scale that never changes: positive and finite as float32.
  float StaticScale(std::string_view name) const;
};

}  // namespace dlsim::sim
