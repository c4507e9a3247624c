// SPDX-License-Identifier: Apache-2.0
// What the skipped steps of a run mean.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "dlsim/enum_names.h"
#include "sim/explain/policy_fit.h"

namespace dlsim::sim {

enum class SkipKind : uint8_t {
  kNone,        // no step was skipped
  kWarmUp,      // only before the first kSettledSteps applied steps in a row
  kSteady,      // afterwards, as often as the scale is tried higher
  kFrequent,    // more often than that
  kDivergence,  // the scale falls and does not recover
  kUnknown,     // the log prints no scale
};

constexpr auto EnumNames(SkipKind) {
  return std::to_array<EnumName<SkipKind>>({{SkipKind::kNone, "none"},
                                            {SkipKind::kWarmUp, "warm-up"},
                                            {SkipKind::kSteady, "steady"},
                                            {SkipKind::kFrequent, "frequent"},
                                            {SkipKind::kDivergence, "divergence"},
                                            {SkipKind::kUnknown, "unknown"}});
}

// This number of applied steps in a row ends the search for the first scale.
inline constexpr int64_t kSettledSteps = 10;

// This number of falls after the last growth, or the warm-up, is a divergence, if they lead this
// far below every scale that was used before.
inline constexpr int64_t kFallsOfDivergence = 4;
inline constexpr double kFallOfDivergence = 8;

struct SkipSummary {
  SkipKind kind = SkipKind::kNone;
  int64_t steps = 0, skipped = 0;
  int64_t warm_up_skips = 0;
  int64_t longest_run = 0;                    // of skipped steps
  std::optional<size_t> tail = {};            // the first skipped step of a divergence
  int64_t tail_skips = 0;                     // from there on
  std::optional<double> share = {};           // of the steps after the warm-up that are skipped
  std::optional<double> expected_share = {};  // one per growth interval
};

// What is known about the steps besides themselves.
struct SkipContext {
  std::optional<int64_t> growth_interval = {};  // of the policy
  bool counted = true;     // the steps have the clean ones too, not overflows only
  bool stopped = false;    // the training ended, since the scale could fall no more, or is 0
  bool from_start = true;  // false: the log begins in mid-training, where nothing is warm-up
  std::optional<double> last_scale = {};  // that the log leaves behind
  bool without_scale = false;             // the log prints none
};
SkipSummary JudgeSkips(std::span<const LoggedStep> steps, const SkipContext& context);

// What happens if every further step overflows.
struct MinimumForecast {
  double minimum = 0;       // where the scale stops falling
  int64_t overflows = 0;    // until it is there
  std::string raises = {};  // the original's exception at the minimum; empty if it skips on
  int64_t overflows_to_raise = 0;
};
std::optional<MinimumForecast> ForecastMinimum(LossScaler scaler);

}  // namespace dlsim::sim
