// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "sim/base/table.h"

namespace dlsim::sim {
namespace {

// Of a window that is open below, as that of bfloat16, no more is drawn.
constexpr int kMostBinades = 48;

// Signs of the plot; paths have letters.
constexpr char kSafe = '.', kPartlySafe = ':', kSeveralSafe = '*', kSeveralUnsafe = '#';

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

// The exponents of a row of the plot.
struct PlotRow {
  int low, high;
  std::string cells;
};

// Rows from the top, each of the same number of exponents.
std::vector<PlotRow> MakeRows(const Range& shown, size_t height, size_t columns) {
  const int binades = shown.high - shown.low + 1, most_rows = static_cast<int>(height);
  const int row_size = (binades + most_rows - 1) / most_rows;
  std::vector<PlotRow> rows;
  for (int high = shown.high; high >= shown.low; high -= row_size) {
    rows.push_back({high - row_size + 1, high, std::string(columns, kSafe)});
  }
  return rows;
}

// Whether a step's window has all exponents of a row, or some.
char SafetyOf(const StepWindow& window, const PlotRow& row) {
  if (window.Has(row.low) && window.Has(row.high)) return kSafe;
  const bool some = !window.empty() && window.low <= row.high && window.high >= row.low;
  return some ? kPartlySafe : ' ';
}

// Of two steps in a cell, what holds for both.
char Both(char a, char b) { return a == b ? a : a == ' ' || b == ' ' ? ' ' : kPartlySafe; }

void DrawWindows(std::span<const StepWindow> windows, size_t columns, std::vector<PlotRow>& rows) {
  for (PlotRow& row : rows) {
    for (size_t i = 0; i < windows.size(); ++i) {
      char& cell = row.cells[i * columns / windows.size()];
      cell = Both(cell, SafetyOf(windows[i], row));
    }
  }
}

// A cell is in upper case while all steps of the paths in it are at safe scales.
char Add(char cell, char letter, bool safe) {
  const char upper = static_cast<char>(std::toupper(letter));
  const bool free = cell == ' ' || cell == kSafe || cell == kPartlySafe;
  if (free) return safe ? upper : letter;
  if (cell == letter || cell == upper) return safe ? cell : letter;
  return safe && cell != kSeveralUnsafe && std::islower(cell) == 0 ? kSeveralSafe : kSeveralUnsafe;
}

void DrawPath(std::span<const ReplayStep> steps, char letter, std::span<const StepWindow> windows,
              std::vector<PlotRow>& rows) {
  const int row_size = rows.front().high - rows.front().low + 1;
  for (size_t i = 0; i < std::min(steps.size(), windows.size()); ++i) {
    PlotRow& row =
        rows[static_cast<size_t>((rows.front().high - ExponentOf(steps[i].scale)) / row_size)];
    char& cell = row.cells[i * row.cells.size() / windows.size()];
    cell = Add(cell, letter, PlaceOf(steps[i], windows[i]) == PathPlace::kInside);
  }
}

bool IsBlank(const PlotRow& row) { return row.cells.find_first_not_of(' ') == std::string::npos; }

std::string LabelOf(const PlotRow& row) {
  return row.low == row.high ? Power(row.low) : Power(row.low) + ".." + Power(row.high);
}

// Rows with nothing in them are left out; a gap between others is one line of dots.
std::string TextOf(std::span<const PlotRow> rows, size_t label_width) {
  std::string plot;
  bool gap = false;
  for (const PlotRow& row : rows) {
    if (IsBlank(row)) {
      gap = !plot.empty();
      continue;
    }
    if (gap) plot += fmt::format("  {:<{}} |\n", "...", label_width);
    gap = false;
    const std::string cells = row.cells.substr(0, row.cells.find_last_not_of(' ') + 1);
    plot += fmt::format("  {:<{}} |{}\n", LabelOf(row), label_width, cells);
  }
  return plot;
}

// Explains every sign that the plot has.
std::string Legend(const std::string& plot, std::span<const PlottedPath> paths, size_t all_paths) {
  const auto has = [&](char sign) { return plot.find(sign) != std::string::npos; };
  std::string text = "  . safe";
  if (has(kPartlySafe)) text += "  : safe for some of the scales or steps";
  if (!paths.empty()) text += "  lower case: the policy's scale is not safe";
  for (size_t p = 0; p < paths.size(); ++p) {
    const char letter = static_cast<char>('a' + p);
    text +=
        fmt::format("  {}/{} {}", static_cast<char>(std::toupper(letter)), letter, paths[p].name);
  }
  if (has(kSeveralSafe)) text += "  * several, all safe";
  if (has(kSeveralUnsafe)) text += "  # several, not all safe";
  if (paths.size() < all_paths) {
    text += fmt::format("  ({} of {} policies shown)", paths.size(), all_paths);
  }
  return text;
}

}  // namespace

std::string PlotWindows(std::span<const StepWindow> windows, std::span<const PlottedPath> paths,
                        size_t all_paths, size_t width, size_t height) {
  if (windows.empty()) return {};
  const Range shown = ShownRange(windows, paths);
  if (shown.low > shown.high) return {};
  const size_t columns = std::min(width, windows.size());
  std::vector<PlotRow> rows = MakeRows(shown, height, columns);
  DrawWindows(windows, columns, rows);
  for (size_t p = 0; p < paths.size(); ++p) {
    DrawPath(paths[p].steps, static_cast<char>('a' + p), windows, rows);
  }
  size_t label_width = 3;
  for (const PlotRow& row : rows) {
    if (!IsBlank(row)) label_width = std::max(label_width, LabelOf(row).size());
  }
  const std::string plot = TextOf(rows, label_width);
  std::string cells;
  for (const PlotRow& row : rows) cells += row.cells;
  const std::string first = fmt::format("step {}", windows.front().step);
  const std::string last = std::to_string(windows.back().step);
  const size_t gap = std::max<size_t>(columns, first.size() + last.size() + 1);
  return plot +
         fmt::format("{:{}}{}{:>{}}\n", "", label_width + 4, first, last, gap - first.size()) +
         Wrap(Legend(cells, paths, all_paths));
}

}  // namespace dlsim::sim
