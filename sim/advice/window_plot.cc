// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/window_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/advice/advice_text.h"

namespace dlsim::sim {
namespace {

// Of a window that is open below, as that of bfloat16, no more is drawn.
constexpr int kMostBinades = 48;

struct Range {
  int low = kHighestWindowExponent, high = kLowestWindowExponent;
  void Include(int exponent) {
    low = std::min(low, exponent);
    high = std::max(high, exponent);
  }
};

int ExponentOf(double scale) {
  if (!(scale > 0)) return kLowestWindowExponent;
  const double exponent = std::floor(std::log2(scale));
  return static_cast<int>(
      std::clamp<double>(exponent, kLowestWindowExponent, kHighestWindowExponent));
}

// The exponents that the plot shows: all paths, and windows as far as they are not open.
Range ShownRange(std::span<const StepWindow> windows, std::span<const PlottedPath> paths) {
  Range shown;
  for (const StepWindow& window : windows) {
    if (window.empty()) continue;
    shown.Include(window.high);
    shown.Include(std::max(window.low, window.high - kMostBinades));
  }
  for (const PlottedPath& path : paths) {
    for (const ReplayStep& step : path.steps) shown.Include(ExponentOf(step.scale));
  }
  return shown;
}

// Draws a path into the grid.
void Draw(std::span<const ReplayStep> steps, char mark, size_t all_steps, int top, int row_size,
          std::vector<std::string>& grid) {
  for (size_t i = 0; i < steps.size(); ++i) {
    const size_t column = i * grid.front().size() / all_steps;
    const size_t row = static_cast<size_t>((top - ExponentOf(steps[i].scale)) / row_size);
    char& cell = grid[row][column];
    cell = cell == ' ' || cell == '.' || cell == mark ? mark : '#';
  }
}

}  // namespace

std::string PlotWindows(std::span<const StepWindow> windows, std::span<const PlottedPath> paths,
                        size_t width, size_t height) {
  if (windows.empty()) return {};
  const Range shown = ShownRange(windows, paths);
  if (shown.low > shown.high) return {};
  const int binades = shown.high - shown.low + 1, most_rows = static_cast<int>(height);
  const int row_size = (binades + most_rows - 1) / most_rows;
  const size_t rows = static_cast<size_t>((binades + row_size - 1) / row_size);
  const size_t columns = std::min(width, windows.size());
  std::vector<std::string> grid(rows, std::string(columns, '.'));
  for (size_t i = 0; i < windows.size(); ++i) {
    for (size_t r = 0; r < rows; ++r) {
      // A row stands for its highest exponent.
      const int exponent = shown.high - static_cast<int>(r) * row_size;
      if (!windows[i].Has(exponent)) grid[r][i * columns / windows.size()] = ' ';
    }
  }
  std::string legend = "  . serves the steps";
  for (size_t p = 0; p < paths.size(); ++p) {
    const char mark = static_cast<char>('a' + p);
    Draw(paths[p].steps, mark, windows.size(), shown.high, row_size, grid);
    legend += fmt::format("  {} {}", mark, paths[p].name);
  }
  std::string plot;
  for (size_t r = 0; r < rows; ++r) {
    grid[r].erase(grid[r].find_last_not_of(' ') + 1);
    const int exponent = shown.high - static_cast<int>(r) * row_size;
    plot += fmt::format("  {:<7} |{}\n", Power(exponent), grid[r]);
  }
  const std::string first = fmt::format("step {}", windows.front().step);
  const std::string last = std::to_string(windows.back().step);
  const size_t gap = std::max<size_t>(columns, first.size() + last.size() + 1);
  return plot + fmt::format("          {}{:>{}}\n", first, last, gap - first.size()) + legend +
         "\n";
}

}  // namespace dlsim::sim
