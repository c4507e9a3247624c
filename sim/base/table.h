// SPDX-License-Identifier: Apache-2.0
// A plain text table: the first column to the left, all others to the right.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/wrap.h"

namespace dlsim::sim {

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
