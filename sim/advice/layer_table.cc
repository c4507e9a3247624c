// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "dlsim/error.h"
#include "sim/advice/advice_text.h"
#include "sim/base/named_list.h"
#include "sim/base/quantity.h"
#include "sim/base/table.h"
#include "sim/replay/layer_name.h"

namespace dlsim::sim {
namespace {

// A layer's tensors together.
struct LayerHarm {
  std::string name;
  HarmOverSteps means = {};  // of its tensors
  double worst = 0;
  size_t steps_at_risk = 0;  // of the tensor that has the most
  std::optional<int64_t> first_step = {}, last_step = {};
};

std::vector<LayerHarm> LayersOf(const FormatAdvice& format) {
  NamedList<LayerHarm> layers;
  for (const TensorHarm& tensor : format.tensors) {
    LayerHarm& layer = layers.Of(LayerOf(tensor.name), layers.items().size() - 1);
    layer.means.Add(tensor.harm.mean());
    layer.worst = std::max(layer.worst, tensor.harm.worst);
    layer.steps_at_risk = std::max(layer.steps_at_risk, tensor.steps_at_risk);
    if (!tensor.first_step) continue;
    layer.first_step = std::min(layer.first_step.value_or(*tensor.first_step), *tensor.first_step);
    layer.last_step = std::max(layer.last_step.value_or(*tensor.last_step), *tensor.last_step);
  }
  return layers.Take();
}

}  // namespace

std::string FormatLayers(const Advice& advice) {
  std::string text;
  for (const FormatAdvice& format : advice.formats) {
    std::vector<TableRow> rows = {
        {format.format + (format.scale ? " at " + Power(std::ilogb(*format.scale)) : "") +
             ", layer",
         "mean harm", "worst", "at risk", "first step", "last step"}};
    for (const LayerHarm& layer : LayersOf(format)) {
      const bool at_risk = layer.first_step.has_value();
      rows.push_back({Printable(layer.name), Percent(layer.means.mean()), Percent(layer.worst),
                      fmt::format("{}/{}", layer.steps_at_risk, format.steps),
                      at_risk ? std::to_string(*layer.first_step) : "-",
                      at_risk ? std::to_string(*layer.last_step) : "-"});
    }
    text += "\n" + FormatTable(rows);
  }
  return text;
}

}  // namespace dlsim::sim
