// SPDX-License-Identifier: Apache-2.0
// The answer: which format serves recorded gradients, at which loss scale, and which layers are at
// risk; from the scale windows of the steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/sim/replay.h"
#include "sim/advice/window_consumer.h"

namespace dlsim::sim {

enum class FormatVerdict : uint8_t { kAsIs, kWithScale, kNoScaleServes, kOverflows };

constexpr auto EnumNames(FormatVerdict) {
  return std::to_array<EnumName<FormatVerdict>>({{FormatVerdict::kAsIs, "as is"},
                                                 {FormatVerdict::kWithScale, "with a scale"},
                                                 {FormatVerdict::kNoScaleServes, "no scale serves"},
                                                 {FormatVerdict::kOverflows, "overflows"}});
}

// True for a format with float32's range of exponents, where scale 1 loses nothing that a higher
// one would keep.
bool HasRangeOfFloat32(const Format& format);

// What bounds the windows of all steps on one side.
struct WindowBound {
  int64_t step = 0;
  std::string tensor;  // empty: nothing does
};

// What is said of one format.
struct FormatAdvice {
  std::string format;
  FormatVerdict verdict = FormatVerdict::kAsIs;
  // Exponents of two of the scales that serve every step but isolated ones; nothing if none does.
  std::optional<ServedSteps::Range> window;
  std::optional<ServedSteps::Range> most_served;  // the same, however few steps these serve
  std::optional<Bracket<int>> low_range;          // from a profile: where the lower end may be
  WindowBound low, high;
  std::optional<double> scale;  // to use at all steps
  // That are not served by that scale; without one, by the scale that serves the most.
  size_t steps_outside = 0;
  size_t steps = 0;
  size_t hopeless_steps = 0;  // of these, not finite as recorded: they say nothing of the format
  size_t empty_steps = 0;     // of the others, with an empty window
  size_t zero_steps = 0;      // of the others, with nothing but zeros, which say nothing either
  std::vector<TensorHarm> tensors;         // at that scale, in file order, without noise
  std::vector<TensorHarm> at_risk;         // of these, the worst first
  std::vector<std::string> noise_tensors;  // not counted
  double mean_harm = 0;                    // over all tensors
  std::vector<StepWindow> windows;         // of all steps
};

// A policy's path beside the windows of its format.
struct PathInWindows {
  std::string format, policy;
  size_t inside = 0, below = 0, above = 0, unserved = 0;  // steps; the last have an empty window
  std::string config = {};  // the configuration it is of, where several are compared
};

// Where the scale of a step lies.
enum class PathPlace : uint8_t { kInside, kBelow, kAbove, kUnserved };
PathPlace PlaceOf(const ReplayStep& step, const StepWindow& window);

PathInWindows CompareWithWindows(std::span<const ReplayStep> steps,
                                 std::span<const StepWindow> windows);

struct Advice {
  std::vector<FormatAdvice> formats;  // in the order of the call
  size_t best = 0;
  std::vector<Role> looked_at;   // that had a gradient which is not zero
  bool parameters_only = false;  // no gradients of activations were among them
  std::string tensors = "*";     // only those that match were read
  BrokenLosses broken_losses = {};
  std::vector<PathInWindows> paths;  // of the policies that were replayed, if any
  std::vector<std::string> lines;    // see AdviceLines
};

// Looks at all steps of a source, at least one, for formats to which `conversion` rounds.
Advice AdviseOn(const GradientSource& source, std::span<const std::string> formats,
                const Conversion& conversion, const StepOptions& options,
                const std::function<void(size_t steps_done)>& progress = {},
                const std::string& tensors = "*");

// Formats are ranked: one that serves as it is first, then those with a scale, by the steps that
// are not served and what the tensors lose. `windows` has at least one format and step.
// `tensors`: the pattern of those that were read.
Advice Advise(std::span<const FormatWindows> windows, const std::string& tensors = "*");

}  // namespace dlsim::sim
