// SPDX-License-Identifier: Apache-2.0
// Rows of what several results hold: counters, harm and loss scales of tensors, and events.
#pragma once

#include <optional>

#include "dlsim/sim/loss_scaler.h"
#include "dlsim/sim/replay_tensor.h"
#include "dlsim/tensor_stats.h"
#include "sim/base/rows.h"

namespace dlsim {

// In JSON; docs/numerics.md defines them.
inline void Rows(const TensorStats& of, sim::RowSink& row) {
  row("elements", of.elements, "values, over all micro-steps");
  row("zeros", of.zeros, "recorded as zero, of both signs");
  row("nonfinite", of.nonfinite(), "recorded as infinite or NaN");
  row("nan", of.nan, "recorded as NaN");
  row("inf", of.inf, "recorded as infinite");
  row("underflow", of.underflow, "nonzero finite values that become zero");
  row("subnormal", of.subnormal, "values that become subnormal");
  row("overflow", of.overflow, "finite values that overflow");
  row("underflow_fraction", of.underflow_fraction(),
      "share of the nonzero finite values that becomes zero");
  row("energy_lost", of.energy_lost(), "share of the sum of squares that becomes zero");
}

}  // namespace dlsim

namespace dlsim::sim {

inline void CsvCounters(const TensorStats& of, RowSink& row) {
  row("elements", of.elements);
  row("zeros", of.zeros);
  row("nan", of.nan);
  row("inf", of.inf);
  row("underflow", of.underflow);
  row("subnormal", of.subnormal);
  row("overflow", of.overflow);
  row("absmax", of.absmax, "largest finite recorded magnitude");
  row("sumsq", of.sum_of_squares, "sum of squares of the finite recorded values");
  row("error_sumsq", of.error_sum_of_squares, "sum of squared rounding errors");
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

}  // namespace dlsim::sim
