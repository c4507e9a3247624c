// SPDX-License-Identifier: Apache-2.0
// How a training updates its weights, as far as its configuration says: the formats of what the
// optimizer reads and writes, and the numbers that it computes with.
//
// For a command that takes --config: `ReadConfig(arguments)->updates.formats` has a name for each
// thing that the file decides, "fp32" or the name of a format that ParseFormat knows; what it does
// not decide is absent, and the command's own default holds. An option of the command line wins.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "sim/config/config_block.h"

namespace dlsim::sim {

inline constexpr std::string_view kFloat32Name = "fp32";
inline constexpr std::string_view kNoMaster = "none";

struct UpdateFormats {
  std::optional<std::string> weights;    // of the parameters that forward computes with
  std::optional<std::string> master;     // of the copy that is updated; "none": weights are
  std::optional<std::string> first;      // moment of Adam, or the momentum
  std::optional<std::string> second;     // moment of Adam
  std::optional<std::string> gradients;  // in which the micro-steps of a rank are summed
  std::optional<std::string> reduce;     // in which ranks are summed

  friend bool operator==(const UpdateFormats&, const UpdateFormats&) = default;
};

// The numbers of Adam and its kin; absent: not read.
struct UpdateSettings {
  std::optional<double> lr;  // the largest of a schedule
  std::optional<double> beta1, beta2, eps, weight_decay;
  bool decoupled = false;  // weights decay by lr * weight_decay, as AdamW's do
};

struct UpdateRules {
  UpdateFormats formats = {};
  UpdateSettings settings = {};
};

// Weights, states and gradients in `type`, without a copy in float32; the sums over ranks are in
// `reduce`.
UpdateFormats PureFormats(std::string_view type, std::string_view reduce);

// Weights in `type` with a copy and states in float32; gradients and their sums in `type`.
UpdateFormats MasterFormats(std::string_view type);

// The same, but sums of gradients are open.
UpdateFormats AutocastFormats(std::string_view type);

// Reads keys on which nothing else depends: a value that is of another type, that is given twice or
// that only running a script would tell is unclear, and never an error. So is an option that is
// absent from a command line with such parts. A view: the tree must outlive it.
class ClearKeys {
 public:
  explicit ClearKeys(const ConfigBlock& block);

  // True if the key is there, clear or not.
  bool Has(std::string_view key) const;
  std::optional<double> Number(std::string_view key) const;
  std::optional<std::string> Text(std::string_view key) const;

  // A switch: off where it is absent, nothing where it is unclear.
  std::optional<bool> Switch(std::string_view key) const;

  // The number, `fallback` where it is absent, nothing where it is unclear.
  std::optional<double> NumberOr(std::string_view key, std::optional<double> fallback) const;

  // The format of a type's name ("torch.bfloat16", "bf16", "fp32"); `fallback` where it is absent,
  // nothing for other names.
  std::optional<std::string> FormatOr(std::string_view key,
                                      std::optional<std::string> fallback) const;

  // A number of a list, or of a text such as "(0.9, 0.98)".
  std::optional<double> ItemOr(std::string_view key, size_t index,
                               std::optional<double> fallback) const;

 private:
  const ConfigNode* Find(std::string_view key) const;  // clear, not null

  const ConfigNode* table_;
  bool is_complete_;  // what is absent is not given
};

// Returns the format of a type's name, or nothing: "bfloat16" is bf16, "float" fp32.
std::optional<std::string> FormatOfType(std::string_view type);

}  // namespace dlsim::sim
