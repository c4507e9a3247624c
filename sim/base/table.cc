// SPDX-License-Identifier: Apache-2.0
#include "sim/base/table.h"

#include <fmt/format.h>

#include <algorithm>

namespace dlsim::sim {

std::string FormatTable(const std::vector<TableRow>& rows) {
  std::vector<size_t> widths;
  for (const TableRow& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const TableRow& row : rows) {
    std::string line = " ";
    for (size_t c = 0; c < row.size(); ++c) {
      line += c == 0 ? fmt::format(" {:<{}}", row[c], widths[c])
                     : fmt::format("  {:>{}}", row[c], widths[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string Percent(double fraction) {
  if (fraction == 0) return "0";
  return fraction >= 0.0001 ? fmt::format("{:.3g} %", 100 * fraction)
                            : fmt::format("{:.1e} %", 100 * fraction);
}

}  // namespace dlsim::sim
