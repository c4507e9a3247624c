// SPDX-License-Identifier: Apache-2.0
// Which layer a gradient belongs to, by the names that the recorder gives.
#pragma once

#include <string>
#include <string_view>

namespace dlsim::sim {

// Returns the module of a gradient: "fc.weight.grad" and "fc.act_grad" are of "fc".
inline std::string LayerOf(std::string_view name) {
  constexpr std::string_view kActGrad = ".act_grad", kGrad = ".grad";
  if (name.ends_with(kActGrad)) return std::string(name.substr(0, name.size() - kActGrad.size()));
  if (name.ends_with(kGrad)) name.remove_suffix(kGrad.size());
  const size_t dot = name.rfind('.');
  return std::string(dot == std::string_view::npos ? name : name.substr(0, dot));
}

// Returns a module's name without the suffix of a repeated call in a step: "fc.call1" is "fc".
inline std::string WithoutCall(std::string name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos || name.compare(dot, 5, ".call") != 0) return name;
  const size_t digits = dot + 5;
  const bool numbered =
      digits < name.size() && name.find_first_not_of("0123456789", digits) == std::string::npos;
  return numbered ? name.substr(0, dot) : name;
}

}  // namespace dlsim::sim
