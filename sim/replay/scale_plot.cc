// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/scale_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "sim/base/quantity.h"

namespace dlsim::sim {
namespace {

// Exponents below or above stand for a scale of zero or infinity in the plot.
constexpr double kLowestPlotted = -150, kHighestPlotted = 128;

double PlottedExponent(double scale) {
  if (std::isnan(scale) || scale <= 0) return kLowestPlotted;
  return std::clamp(std::log2(scale), kLowestPlotted, kHighestPlotted);
}

// The steps that share one column of the plot.
struct PlotColumn {
  double low = kHighestPlotted, high = kLowestPlotted;
  bool skipped = false;
};

std::vector<PlotColumn> MakeColumns(std::span<const ReplayStep> steps, size_t width) {
  std::vector<PlotColumn> columns(std::min(width, steps.size()));
  for (size_t i = 0; i < steps.size(); ++i) {
    PlotColumn& column = columns[i * columns.size() / steps.size()];
    const double exponent = PlottedExponent(steps[i].scale);
    column.low = std::min(column.low, exponent);
    column.high = std::max(column.high, exponent);
    column.skipped |= steps[i].skipped;
  }
  return columns;
}

}  // namespace

std::string PlotScale(std::span<const ReplayStep> steps, size_t width, size_t height) {
  if (steps.empty()) return {};
  const std::vector<PlotColumn> columns = MakeColumns(steps, width);
  double low = kHighestPlotted, high = kLowestPlotted;
  for (const PlotColumn& column : columns) {
    low = std::min(low, column.low);
    high = std::max(high, column.high);
  }
  // Rows are whole powers of two apart.
  const double row_size = std::max(1.0, std::ceil((high - low) / static_cast<double>(height - 1)));
  const auto row_of = [&](double exponent) {
    return static_cast<size_t>(std::lround((high - exponent) / row_size));
  };
  const size_t rows = row_of(low) + 1;
  std::vector<std::string> grid(rows, std::string(columns.size(), ' '));
  for (size_t c = 0; c < columns.size(); ++c) {
    for (size_t r = row_of(columns[c].high); r <= row_of(columns[c].low); ++r) {
      grid[r][c] = columns[c].skipped ? 'x' : '*';
    }
  }
  std::string plot;
  for (size_t r = 0; r < rows; ++r) {
    grid[r].erase(grid[r].find_last_not_of(' ') + 1);
    const double exponent = high - static_cast<double>(r) * row_size;
    const bool whole = exponent == std::round(exponent);
    plot += fmt::format("  {:<8} |{}\n",
                        whole ? ScaleText(std::exp2(exponent)) : fmt::format("2^{:.1f}", exponent),
                        grid[r]);
  }
  const std::string first = fmt::format("step {}", steps.front().step);
  const std::string last = std::to_string(steps.back().step);
  const size_t gap = std::max<size_t>(columns.size(), first.size() + last.size() + 1);
  plot += fmt::format("           {}{:>{}}\n", first, last, gap - first.size() + 1);
  return plot;
}

}  // namespace dlsim::sim
