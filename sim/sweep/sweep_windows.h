// SPDX-License-Identifier: Apache-2.0
// The scale windows of the conversions that the runs of a sweep make, step by step, and the
// verdicts that follow from them.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "dlsim/sim/replay.h"
#include "sim/advice/advice.h"
#include "sim/advice/window_consumer.h"

namespace dlsim::sim {

// What is said of the formats where values are rounded in one way.
struct SweepAdvice {
  Rounding rounding = Rounding::kNearestEven;
  Advice advice;
};

class SweepWindows {
 public:
  SweepWindows(std::span<const ReplayRun> runs, const ReplayOptions& options,
               const GradientSource& source);

  void Ask(const GradientStep& step, StepQuestions& questions);
  void Advance(size_t i, const GradientStep& step, const MeasuredStep& measured);

  // The windows of the step that was advanced last, by place, and the place of run r.
  std::span<const StepWindow* const> latest() const { return latest_; }
  size_t PlaceOf(size_t r) const { return places_[r]; }

  // After the last step, once: a verdict for each way of rounding, on the formats in the order of
  // `formats`. `tensors`: the pattern of those that were read.
  std::vector<SweepAdvice> Verdicts(const GradientSource& source,
                                    std::span<const std::string> formats,
                                    const std::string& tensors);

 private:
  // Conversions that differ in the format only are searched together.
  struct Group {
    Conversion conversion;
    std::vector<NamedFormat> formats;
    std::vector<size_t> places;
  };

  size_t Place(const ReplayRun& run);

  std::vector<Group> groups_;
  std::vector<WindowConsumer> searches_;  // of the groups
  std::vector<size_t> places_;
  std::vector<const StepWindow*> latest_;
};

}  // namespace dlsim::sim
