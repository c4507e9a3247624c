// SPDX-License-Identifier: Apache-2.0
// Reports: lines that fit a terminal, and plain text tables.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dlsim::sim {

inline constexpr size_t kTerminalColumns = 80;

// Returns how wide lines on standard output may be: $COLUMNS, else the terminal's width; no limit
// if it is neither set nor a terminal.
size_t OutputColumns();

// Returns how wide sentences are: 80, or less where lines must be narrower.
size_t SentenceColumns();

// Breaks a line at blanks; what follows is indented by two more than the line.
std::string Wrap(const std::string& line, size_t columns = SentenceColumns());

// Breaks the sentences among the lines of a report, which have single blanks; rows of tables stay.
std::string FitLines(std::string_view text, size_t columns);

// Breaks what is too long in the text of --help: descriptions within their column, examples so that
// they can still be pasted.
std::string FitHelp(std::string_view text, size_t columns);

// Writes a report to standard output, in lines that fit it. Throws Error if writing fails.
void WriteReport(std::string_view text);

// A plain text table: the first column to the left, all others to the right.
using TableRow = std::vector<std::string>;

// Returns the rows, the first being the header, with columns as wide as their widest cell and two
// blanks between them; each line is indented by two. As long as it is wider than `columns`, which
// OutputColumns tells, it goes without the columns of these headers, the first ones first, and a
// last line names them.
std::string FormatTable(const std::vector<TableRow>& rows,
                        std::span<const std::string_view> dispensable = {},
                        size_t columns = OutputColumns());

// Returns the line below a list that was cut to `shown` of `all` rows; empty if it was not.
std::string MoreRows(size_t shown, size_t all);

}  // namespace dlsim::sim
