// SPDX-License-Identifier: Apache-2.0
// Where a policy ends up on clean steps only or on overflows only, for notes on its parameters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/sim/loss_scaler.h"

namespace dlsim::sim {

// A long training run; what lies beyond is not worth a note.
constexpr int64_t kProjectedSteps = 100000;

// While one of these lives, projections on its thread give up at once: for those who make very many
// scalers and read none of their notes.
class NoProjections {
 public:
  NoProjections() { ++count_; }
  ~NoProjections() { --count_; }
  NoProjections(const NoProjections&) = delete;
  NoProjections& operator=(const NoProjections&) = delete;

  static bool Active() { return count_ > 0; }

 private:
  static inline thread_local int count_ = 0;
};

// Returns the number of equal steps from the start after which done(transition) holds, if any.
template <LossScalePolicy P, class Done>
std::optional<int64_t> StepsUntil(const typename P::Config& config, const ScalerInput& input,
                                  const Done& done) {
  if (NoProjections::Active()) return std::nullopt;
  typename P::State state = P::Start(config);
  for (int64_t steps = 1; steps <= kProjectedSteps; ++steps) {
    const Transition<typename P::State> transition = P::Next(config, state, input);
    if (done(transition)) return steps;
    state = transition.next;
  }
  return std::nullopt;
}

// Returns the number of clean steps after which the scale is at least `limit`, if it starts below.
template <LossScalePolicy P>
std::optional<int64_t> CleanStepsToReach(const typename P::Config& config, double limit) {
  if (!(P::Scale(P::Start(config)) < limit)) return std::nullopt;
  return StepsUntil<P>(config, {.overflow = false},
                       [&](const auto& transition) { return P::Scale(transition.next) >= limit; });
}

// Returns the number of overflows in a row after which the scale is 0, if it does not start there.
template <LossScalePolicy P>
std::optional<int64_t> OverflowsToZero(const typename P::Config& config) {
  if (P::Scale(P::Start(config)) == 0) return std::nullopt;
  return StepsUntil<P>(config, {.overflow = true},
                       [](const auto& transition) { return P::Scale(transition.next) == 0; });
}

// Notes a first scale `name` that as float32 is 0 or infinite, which no factor changes.
void NoteDeadStart(std::string_view name, double scale, std::vector<std::string>& notes);

// Notes after how many overflows in a row the scale becomes 0.
void NoteZero(std::optional<int64_t> overflows, std::vector<std::string>& notes);

// Notes a factor that divides the scale on an overflow without lowering it.
void NoteDivisor(std::string_view name, double factor, std::vector<std::string>& notes);

// Notes after how many clean steps the scale becomes infinite.
void NoteInfinity(std::optional<int64_t> clean_steps, std::vector<std::string>& notes);

// As NoteInfinity, for a scale without a ceiling: it can also take longer than kProjectedSteps.
void NoteNoCeiling(std::optional<int64_t> clean_steps, std::vector<std::string>& notes);

// Notes after how many clean steps the scale reaches its ceiling `name`, if that is not a power
// of two.
void NoteCeiling(std::string_view name, double ceiling, std::optional<int64_t> clean_steps,
                 std::vector<std::string>& notes);

}  // namespace dlsim::sim
