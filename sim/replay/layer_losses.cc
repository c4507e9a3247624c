// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/layer_losses.h"

#include <algorithm>
#include <string_view>
#include <tuple>

#include "dlsim/error.h"
#include "sim/base/named_list.h"
#include "sim/base/quantity.h"
#include "sim/base/table.h"
#include "sim/replay/layer_name.h"

namespace dlsim::sim {
namespace {

TableRow RowOfLayer(const LayerLoss& layer) {
  return {Printable(layer.name), Percent(layer.harm.mean()), Percent(layer.harm.worst),
          std::to_string(layer.overflow),
          layer.first_overflow_step ? std::to_string(*layer.first_overflow_step) : "-"};
}

}  // namespace

std::vector<LayerLoss> LayerLosses(std::span<const ReplayTensor> tensors) {
  NamedList<LayerLoss> layers;
  for (const ReplayTensor& tensor : tensors) {
    if (tensor.noise()) continue;
    LayerLoss& layer = layers.Of(WithoutCall(LayerOf(tensor.name)), layers.items().size() - 1);
    ++layer.tensors;
    layer.overflow += tensor.stats.overflow;
    if (tensor.first_overflow_step) {
      layer.first_overflow_step =
          std::min(layer.first_overflow_step.value_or(*tensor.first_overflow_step),
                   *tensor.first_overflow_step);
    }
    if (tensor.harm.steps == 0) continue;
    layer.harm.Add(tensor.harm.mean());
    layer.harm.worst = std::max(layer.harm.worst, tensor.harm.worst);
  }
  std::vector<LayerLoss> sorted = layers.Take();
  std::ranges::stable_sort(sorted, std::greater(), [](const LayerLoss& layer) {
    return std::tuple(layer.overflow, layer.harm.worst);
  });
  return sorted;
}

std::string FormatLayerLosses(std::span<const SimulationRun> runs, size_t top) {
  std::string text;
  for (const SimulationRun& run : runs) {
    if (run.resume || !run.start || top == 0) continue;
    const std::vector<LayerLoss> layers = LayerLosses(run.result.tensors);
    std::vector<TableRow> rows = {
        {RunLabel(run) + ", layer", "mean harm", "worst harm", "overflows", "first at step"}};
    const size_t shown = std::min(top, layers.size());
    for (size_t i = 0; i < shown; ++i) rows.push_back(RowOfLayer(layers[i]));
    constexpr std::string_view kDispensable[] = {"first at step", "mean harm"};
    text += "\n" + FormatTable(rows, kDispensable) + MoreRows(shown, layers.size());
  }
  return text;
}

}  // namespace dlsim::sim
