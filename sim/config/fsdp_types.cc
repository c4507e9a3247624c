// SPDX-License-Identifier: Apache-2.0
// Source: torch/distributed/fsdp/api.py of PyTorch 2.15, class MixedPrecision.
#include "sim/config/fsdp_types.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "dlsim/error.h"
#include "dlsim/format.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

void AddNote(const ConfigNode& type, std::string_view key, const std::string& path,
             std::vector<std::string>& notes) {
  const std::optional<std::string> format = FormatOfType(type.text);
  if (type.kind != Kind::kText || !format || format == kFloat32Name) return;
  const int bits = ParseFormat(*format).format.mantissa_bits + 1;
  if (key == "reduce_dtype") {
    notes.push_back(fmt::format(
        "if gradients of several ranks are summed in {} {}: each addition rounds to {} significant "
        "bits (dlsim accumulate shows the error)",
        path, *format, bits));
  } else if (key == "buffer_dtype") {
    notes.push_back(
        fmt::format("if a buffer holds positions or counts: {} {} holds every integer "
                    "only up to {}",
                    path, *format, 1 << bits));
  }
}

void FindTypes(const ConfigNode& node, const std::string& path, std::vector<std::string>& notes) {
  for (const ConfigEntry& entry : node.entries) {
    const std::string inner = path.empty() ? entry.key : path + "." + entry.key;
    AddNote(entry.value, entry.key, Printable(inner), notes);
    FindTypes(entry.value, inner, notes);
  }
}

}  // namespace

UpdateFormats FsdpFormats(std::optional<std::string> param, std::optional<std::string> reduce,
                          std::optional<std::string> shards) {
  UpdateFormats formats;
  if (shards) formats.master = shards == param ? std::string(kNoMaster) : *shards;
  formats.weights = std::move(param);
  formats.reduce = std::move(reduce);
  return formats;
}

std::vector<std::string> LintFsdp(const ConfigNode& root) {
  std::vector<std::string> notes;
  FindTypes(root, "", notes);
  return notes;
}

}  // namespace dlsim::sim
