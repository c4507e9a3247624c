// SPDX-License-Identifier: Apache-2.0
// The logs of guided-diffusion and those that took over its trainer: the logarithm to base 2 of the
// scale in messages, in tables over several lines, in progress.csv and progress.json.
#pragma once

#include <optional>
#include <string_view>

#include "sim/explain/log_event.h"

namespace dlsim::sim {

struct LogEvents;

inline constexpr std::string_view kLog2ScaleName = "lg_loss_scale";

// Returns what "Found NaN, decreased lg_loss_scale to 19.0" says; nothing for other lines.
std::optional<LogEvent> GuidedDiffusion(std::string_view line);

// Returns the record of a step: its `log2_scale` is a mean over the steps since the one before.
std::optional<LogEvent> GuidedRecord(int64_t step, const PrintedNumber& log2_scale);

// The rows "| lg_loss_scale | 19.3 |" and "| step | 10 |" of a table, which other rows are
// between.
class GuidedTable {
 public:
  // Returns the record of a table whose last row of the two is `line`.
  std::optional<LogEvent> Add(std::string_view line);

  // Whether one of the rows came that a record is of, and not yet the other.
  bool IsOpen() const { return log2_scale_.has_value(); }

 private:
  std::optional<PrintedNumber> log2_scale_;
};

// Counts the overflows between means by their falls; leaves the means out where there are messages,
// which report each overflow.
void ReadGuidedMeans(LogEvents& log);

}  // namespace dlsim::sim
