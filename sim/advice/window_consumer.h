// SPDX-License-Identifier: Apache-2.0
// Observes the steps of a source and finds the scale windows of formats, what each
// gradient loses at the scale that is safe at most steps, and whether the forward pass fits.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/sim/advice.h"
#include "sim/advice/forward_tally.h"
#include "sim/advice/scale_window.h"
#include "sim/base/named_list.h"
#include "sim/replay/step_loop.h"

namespace dlsim::sim {

// At how many steps each power of two is safe.
class SafeStepCounts {
 public:
  void Add(const StepWindow& window);

  // Of the exponents that are safe at the most steps with head-room, the row that holds 0, else
  // the longest row. Empty if no scale is safe at any step.
  std::optional<SafeScales> Best() const;

 private:
  using Counts = std::array<size_t, kHighestWindowExponent - kLowestWindowExponent + 1>;

  size_t SafeAt(int exponent) const;
  SafeScales Around(int exponent) const;

  Counts safe_ = {}, with_room_ = {};
};

// A tensor that loses more than this share of its own energy at some step is at risk.
inline constexpr double kHarmAtRisk = 0.1;

// What a format's steps came to.
struct FormatWindows {
  NamedFormat format;
  std::vector<StepWindow> steps;
  SafeStepCounts safe_steps;
  int exponent = 0;                 // at which the tensors' harm was measured
  std::vector<TensorHarm> tensors;  // in file order of their first appearance
  BrokenLosses broken_losses = {};
  ForwardVerdict forward = {}, values = {};
  Recipe recipe = Recipe::kAutocast;
  RefusedSteps refused = {};
  ComputedIn16Bits computed_in = {};
};

// Returns the formats of these names, each once.
std::vector<NamedFormat> NamedFormats(std::span<const std::string> names);

class WindowConsumer final : public StepConsumer {
 public:
  // Rounds as `conversion` says, to each format. `options` as for the other consumers. `recipe`
  // says which forward tensors count.
  WindowConsumer(std::span<const NamedFormat> formats, const Conversion& conversion,
                 const ReplayOptions& options, Recipe recipe = Recipe::kAutocast);

  // Looks all over the run for tensors that hold nothing but rounding noise; before the first step.
  void FindNoise(const GradientSource& source) { noise_.Sample(source, options_); }

  bool Ask(const GradientStep& step, StepQuestions& questions) override;
  void Advance(size_t i, const GradientStep& step, const MeasuredStep& measured) override;

  // The window of the step that was advanced last, for the format at this place.
  const StepWindow& Latest(size_t format) const { return formats_[format].search.windows().back(); }

  // Measures the steps again whose tensors were not measured at the scale that came out in the end,
  // and returns the windows of the formats in order. Once, after the last step.
  std::vector<FormatWindows> Take(const GradientSource& source);

 private:
  struct Searched {
    WindowSearch search;
    SafeStepCounts safe_steps;
    int exponent = 0;
    size_t first = 0;  // step from which on tensors were measured at the exponent
    NamedList<TensorHarm> tensors;
    ForwardTally forward;
    size_t forward_answer = 0;  // its place among those of the step
  };
  // A question of a format, and the place of its answer.
  struct Probe {
    size_t format;
    int exponent;
    bool of_tensors;  // at the scale at which tensors are looked at
    size_t answer;
  };

  // Those of one step as bytes, which take a tenth of the memory.
  struct KeptChannels {
    size_t tensors = 0;
    std::string curves;
  };

  void AskAt(size_t format, int exponent, bool of_tensors, StepQuestions& questions);
  void AskWanted(StepQuestions& questions);
  void Learn(const StepInputs& inputs, const StepMeasurement& measured);
  void AddHarm(int64_t step, const StepInputs& inputs, const StepMeasurement& measured,
               const Probe& probe);
  void Settle(Searched& searched, size_t next_step);
  void AddForward(const GradientStep& step, const StepInputs& inputs,
                  const StepMeasurement& forward);
  void KeepChannels(std::span<const ChannelCurves> channels);
  StepMeasurement MeasureAgain(size_t i, const GradientStep& step,
                               const StepQuestions& questions) const;

  StepOptions options_;
  Recipe recipe_;
  NoiseFinder noise_;
  BrokenLosses broken_losses_;
  RefusedSteps refused_;
  ComputedIn16Bits computed_in_;
  std::vector<Searched> formats_;
  std::vector<Probe> probes_;
  std::vector<KeptChannels> kept_channels_;  // of the first steps
  size_t kept_bytes_ = 0;
};

}  // namespace dlsim::sim
