// SPDX-License-Identifier: Apache-2.0
// Rows of what several results hold: what was read, a trace or a profile and what that answers,
// also in words; counters, harm and loss scales of tensors, and events.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/sim/loss_scaler.h"
#include "dlsim/sim/replay.h"
#include "dlsim/sim/step.h"
#include "dlsim/tensor_stats.h"
#include "sim/base/rows.h"

namespace dlsim {

// In JSON; docs/numerics.md defines them.
inline void Rows(const TensorStats& of, sim::RowSink& row) {
  ForEachCounter([&](auto counter) {
    constexpr auto kRow = counter.kRow;
    if constexpr (kRow.shown == Shown::kJson || kRow.shown == Shown::kBoth) {
      row(kRow.name, std::invoke(kRow.of, of), kRow.meaning);
    }
  });
}

}  // namespace dlsim

namespace dlsim::sim {

inline void CsvCounters(const TensorStats& of, RowSink& row) {
  ForEachCounter([&](auto counter) {
    constexpr auto kRow = counter.kRow;
    if constexpr (kRow.shown == Shown::kCsv || kRow.shown == Shown::kBoth) {
      row(kRow.column, std::invoke(kRow.of, of), kRow.meaning);
    }
  });
}

constexpr bool IsNone(const HarmOverSteps& harm) { return harm.steps == 0; }

inline void Rows(const HarmOverSteps& of, RowSink& row) {
  row("mean_harm", of.mean(), "mean [harm](verdict.md#harm) over applied steps; null without any");
  row("worst_harm", of.worst, "largest of them");
}

inline std::optional<double> MeanChannelHarm(const ChannelHarm& harm) {
  return harm.mean.steps == 0 ? std::nullopt : std::optional(harm.mean.mean());
}

inline void Rows(const ScaleRange& of, RowSink& row) {
  row("min", of.min, "least");
  row("max", of.max, "largest");
  row("final", of.final, "at the last step");
}

inline void Rows(const ScalerEvent& of, RowSink& row) {
  row("step", of.step, "-1: the policy refused its parameters");
  row("type", of.type, "the original's exception, or what it logs");
  row("message", of.message,
      "its text; in some cases details such as `non_clamped` "
      "follow");
  row("fatal", of.fatal, "whether the original stops here");
  row.Group(of.details);
}

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
