// SPDX-License-Identifier: Apache-2.0
#include "sim/base/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <numeric>

#include "sim/base/caller.h"
#include "sim/base/files.h"

namespace dlsim::sim {
namespace {

constexpr size_t kFewestColumns = 40;  // narrower ones break the lines themselves
constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

bool IsSentence(std::string_view line) {
  const size_t begin = line.find_first_not_of(' ');
  if (begin == std::string_view::npos || line[begin] == '#') return false;  // code to paste
  return line.find("  ", begin) == std::string_view::npos;
}

}  // namespace

size_t OutputColumns() {
  size_t columns = 0;
  if (const char* const given = std::getenv("COLUMNS")) {
    const std::string_view text = given;
    std::from_chars(text.data(), text.data() + text.size(), columns);
  }
  if (columns == 0) columns = CurrentCaller().columns;
  return columns == 0 ? kNoLimit : std::max(columns, kFewestColumns);
}

size_t SentenceColumns() { return std::min(kTerminalColumns, OutputColumns()); }

std::string Wrap(const std::string& line, size_t columns) {
  const size_t begin = std::min(line.find_first_not_of(' '), line.size());
  const std::string indent(begin + 2, ' ');
  std::string text, rest = line;
  size_t blanks = begin;  // at the front of the rest
  while (rest.size() > columns) {
    size_t end = rest.rfind(' ', columns);
    if (end == std::string::npos || end <= blanks) end = rest.find(' ', columns);
    if (end == std::string::npos) break;
    text += rest.substr(0, end) + "\n";
    rest = indent + rest.substr(end + 1);
    blanks = indent.size();
  }
  return text + rest + "\n";
}

std::string FitLines(std::string_view text, size_t columns) {
  std::string fitting;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const bool whole = end == text.size();
    if (line.size() > columns && IsSentence(line)) {
      fitting += Wrap(std::string(line), columns);
      if (whole) fitting.pop_back();
    } else {
      fitting += line;
      if (!whole) fitting += '\n';
    }
    text.remove_prefix(whole ? end : end + 1);
  }
  return fitting;
}

namespace {

// Where the description of an option begins: behind the blanks that follow its name.
size_t DescriptionOf(std::string_view line) {
  const size_t name = line.find_first_not_of(' ');
  const size_t gap = name == line.npos ? line.npos : line.find("  ", name);
  return gap == line.npos ? std::min(name, line.size()) : line.find_first_not_of(' ', gap);
}

std::string FitHelpLine(std::string_view line, size_t columns) {
  const bool example = line.starts_with("  dlsim ");
  const std::string end_of_line = example ? " \\" : "";
  const std::string indent(example ? 6 : std::min(DescriptionOf(line), columns / 2), ' ');
  std::string text, rest(line);
  size_t begin = indent.size();  // no break before this
  while (rest.size() > columns) {
    const size_t at = rest.rfind(' ', columns - end_of_line.size());
    if (at == std::string::npos || at <= begin) break;
    text += rest.substr(0, at) + end_of_line + "\n";
    rest = indent + rest.substr(at + 1);
  }
  return text + rest;
}

}  // namespace

std::string FitHelp(std::string_view text, size_t columns) {
  std::string fitting;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    fitting += FitHelpLine(text.substr(0, end), columns);
    if (end < text.size()) fitting += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return fitting;
}

void WriteReport(std::string_view text) { WriteOutput("-", FitLines(text, OutputColumns())); }

namespace {

std::vector<size_t> Widths(const std::vector<TableRow>& rows) {
  std::vector<size_t> widths;
  for (const TableRow& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  return widths;
}

// Removes the columns that the table can do without until it fits; returns their headers.
std::string Narrow(std::vector<TableRow>& rows, std::span<const std::string_view> dispensable,
                   size_t columns) {
  std::string removed;
  for (const std::string_view name : dispensable) {
    const std::vector<size_t> widths = Widths(rows);
    if (std::accumulate(widths.begin(), widths.end(), 2 * widths.size()) <= columns) break;
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
