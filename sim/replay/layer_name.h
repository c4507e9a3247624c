// SPDX-License-Identifier: Apache-2.0
// Which layer a gradient belongs to, by the names that the recorder gives.
#pragma once

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

namespace dlsim::sim {

// Returns the module of a tensor: "fc.weight.grad", "fc.act_grad" and "fc/add.act" are of "fc".
inline std::string LayerOf(std::string_view name) {
  for (const std::string_view of_output : {".act_grad", ".act", ".fwd"}) {
    if (name.ends_with(of_output)) {
      return std::string(name.substr(0, std::min(name.size() - of_output.size(), name.rfind('/'))));
    }
  }
  for (const std::string_view of_parameter : {".grad", ".value"}) {
    if (name.ends_with(of_parameter)) {
      name.remove_suffix(of_parameter.size());
      break;
    }
  }
  const size_t dot = name.rfind('.');
  return std::string(dot == std::string_view::npos ? name : name.substr(0, dot));
}

// Returns the output of which a tensor is the gradient: "fc.act" of "fc.act_grad"; any other name
// as it is.
inline std::string OutputOf(std::string_view name) {
  constexpr std::string_view kGradient = "_grad";
  if (name.ends_with(kGradient)) name.remove_suffix(kGradient.size());
  return std::string(name);
}

// Returns a tensor's name without what it is of: "fc.call1" of "fc.call1.act_grad", and "fc/add" of
// "fc/add.act".
inline std::string StemOf(const std::string& name) { return name.substr(0, name.rfind('.')); }

// Returns whether a name is that of an operation in a module, `<module>/<operation>`.
inline bool IsOfOperation(std::string_view name) { return name.find('/') != name.npos; }

// Returns whether a name is that of the largest score of each row, which the recorder adds where
// softmax gets rows of nothing but masked scores: `<module>/masked_rows.act`.
inline bool IsOfMaskedRows(std::string_view name) { return name.find("/masked_rows") != name.npos; }

// Returns whether a name is that of what an operation divides by, which the recorder adds where
// some of it is tiny: `<module>/divisor.act`.
inline bool IsOfDivisors(std::string_view name) { return name.find("/divisor") != name.npos; }

// Whether a tensor holds what a module divides by, as shares of the values that it is the
// difference of: `<module>/difference.act`.
inline bool IsOfDifferences(std::string_view name) { return name.find("/difference") != name.npos; }

// Whether a tensor holds by how much the samples of an input of 16 bits differ, as shares of the
// input: `<module>/sample.act`.
inline bool IsOfSamples(std::string_view name) { return name.find("/sample") != name.npos; }

// Whether a tensor holds angles that a module turns activations by: `<module>/angle.act`.
inline bool IsOfAngles(std::string_view name) { return name.find("/angle") != name.npos; }

// Returns the operation that gets a constant which fp16 cannot hold, where PyTorch raises an error
// then: `masked_fill` of `<module>/refused_masked_fill.act`. Empty for other tensors.
inline std::string RefusingOperation(std::string_view name) {
  constexpr std::string_view kName = "/refused_";
  const size_t at = name.find(kName);
  if (at == name.npos) return "";
  name.remove_prefix(at + kName.size());
  return std::string(name.substr(0, name.find('.')));
}

// Returns how many bits of significand were kept where a tensor holds by which share rounding makes
// the loss of a pass larger, `<module>/rounded_loss<bits>.act`; 0 for other tensors.
inline int BitsOfRoundedLoss(std::string_view name) {
  constexpr std::string_view kName = "/rounded_loss";
  const size_t at = name.find(kName);
  int bits = 0;
  if (at != name.npos) {
    std::from_chars(name.data() + at + kName.size(), name.data() + name.size(), bits);
  }
  return bits;
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
