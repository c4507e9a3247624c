// SPDX-License-Identifier: Apache-2.0
// What was read, a trace or a profile and what that answers, in words and as JSON.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dlsim/sim/step.h"
#include "sim/base/rows.h"

namespace dlsim::sim {

// What a profile holds next to the tables of gradients and forward tensors.
inline void ProfileNames(const ProfileSettings& of, RowSink& row) {
  row("mantissas", of.mantissas,
      "of loss scales that are no powers of two, from 1 to 2, for which it "
      "[was made](profiles.md#what-it-answers)");
  std::vector<std::string> formats;
  for (const NamedScaledFormat& format : of.scaled) formats.push_back(format.name);
  row("scaled_formats", formats, "names of formats for which it was made");
}

// Returns the lines of a report.
std::string DescribeProfile(const ProfileFacts& profile, uint64_t file_bytes);

// The object "trace": what was read, which lives until it is told.
TellRows RowsOf(const SourceFacts& facts, std::span<const std::string> paths);
void AddTraceKeys(std::vector<KeyTable>& tables);

}  // namespace dlsim::sim
