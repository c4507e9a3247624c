// SPDX-License-Identifier: Apache-2.0
#include "sim/base/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

namespace dlsim::sim {

namespace {

std::vector<size_t> Widths(const std::vector<TableRow>& rows) {
  std::vector<size_t> widths;
  for (const TableRow& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  return widths;
}

size_t LineWidth(const std::vector<size_t>& widths) {
  return std::accumulate(widths.begin(), widths.end(), 2 * widths.size());
}

// Removes the columns that the table can do without until it fits; returns their headers.
std::string Narrow(std::vector<TableRow>& rows, std::span<const std::string_view> dispensable,
                   size_t columns) {
  std::string removed;
  for (const std::string_view name : dispensable) {
    if (LineWidth(Widths(rows)) <= columns) break;
    const auto found = std::ranges::find(rows.front(), name);
    if (found == rows.front().end()) continue;
    const ptrdiff_t place = found - rows.front().begin();
    for (TableRow& row : rows) {
      if (place < std::ssize(row)) row.erase(row.begin() + place);
    }
    removed.append(removed.empty() ? "" : ", ").append(name);
  }
  return removed;
}

}  // namespace

std::string FormatTable(const std::vector<TableRow>& rows,
                        std::span<const std::string_view> dispensable, size_t columns) {
  std::vector<TableRow> shown = rows;
  const std::string removed = Narrow(shown, dispensable, columns);
  const std::vector<size_t> widths = Widths(shown);
  std::string text;
  for (const TableRow& row : shown) {
    std::string line = " ";
    for (size_t c = 0; c < row.size(); ++c) {
      line += c == 0 ? fmt::format(" {:<{}}", row[c], widths[c])
                     : fmt::format("  {:>{}}", row[c], widths[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return removed.empty() ? text : text + "  in a wider terminal: " + removed + "\n";
}

std::string MoreRows(size_t shown, size_t all) {
  return shown < all ? fmt::format("  and {} more: --top {}\n", all - shown, all) : "";
}

}  // namespace dlsim::sim
