// SPDX-License-Identifier: Apache-2.0
// A plain text table: the first column to the left, all others to the right.
#pragma once

#include <string>
#include <vector>

namespace dlsim::sim {

using TableRow = std::vector<std::string>;

// Returns the rows, the first being the header, with columns as wide as their widest cell and two
// blanks between them; each line is indented by two.
std::string FormatTable(const std::vector<TableRow>& rows);

// Returns a share as a percentage that tells "none" from "few".
std::string Percent(double fraction);

}  // namespace dlsim::sim
