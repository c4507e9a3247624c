// SPDX-License-Identifier: Apache-2.0
// Text in lines that fit a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

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

}  // namespace dlsim::sim
