// SPDX-License-Identifier: Apache-2.0
// Which layer a gradient belongs to, by the names that the recorder gives.
#pragma once

#include <algorithm>
#include <string_view>

namespace dlsim::sim {

// Returns the module of a tensor: "fc.weight.grad", "fc.act_grad" and "fc/add.act" are of "fc".
inline std::string_view LayerOf(std::string_view name) {
  for (const std::string_view of_output : {".act_grad", ".act", ".fwd"}) {
    if (name.ends_with(of_output)) {
      return name.substr(0, std::min(name.size() - of_output.size(), name.rfind('/')));
    }
  }
  for (const std::string_view of_parameter : {".grad", ".value"}) {
    if (name.ends_with(of_parameter)) {
      name.remove_suffix(of_parameter.size());
      break;
    }
  }
  return name.substr(0, name.rfind('.'));
}

// Returns the output of which a tensor is the gradient: "fc.act" of "fc.act_grad"; any other name
// as it is.
inline std::string_view OutputOf(std::string_view name) {
  constexpr std::string_view kGradient = "_grad";
  if (name.ends_with(kGradient)) name.remove_suffix(kGradient.size());
  return name;
}

// Returns a tensor's name without what it is of: "fc.call1" of "fc.call1.act_grad", and "fc/add" of
// "fc/add.act".
inline std::string_view StemOf(std::string_view name) { return name.substr(0, name.rfind('.')); }

// Returns whether a name is that of an operation in a module, `<module>/<operation>`.
inline bool IsOfOperation(std::string_view name) { return name.find('/') != name.npos; }

// Returns a module's name without the suffix of a repeated call in a step: "fc.call1" is "fc".
inline std::string_view WithoutCall(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == name.npos || name.compare(dot, 5, ".call") != 0) return name;
  const size_t digits = dot + 5;
  const bool numbered =
      digits < name.size() && name.find_first_not_of("0123456789", digits) == name.npos;
  return numbered ? name.substr(0, dot) : name;
}

}  // namespace dlsim::sim
