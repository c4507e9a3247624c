// SPDX-License-Identifier: Apache-2.0
// What follows from the scale windows of the steps: the verdict, where a policy's path lies, and
// what to change where a format fails: the parts of the model to keep in float32. In words, and as
// JSON.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/sim/advice.h"
#include "dlsim/sim/replay.h"
#include "sim/advice/windows.h"
#include "sim/base/rows.h"

namespace dlsim::sim {

// True for a format with float32's range of exponents, where scale 1 loses nothing that a higher
// one would keep.
bool HasRangeOfFloat32(const Format& format);

// Whether the format can be used, with or without a loss scale.
inline bool Trains(const FormatAdvice& format) {
  return format.verdict == Verdict::kAsIs || format.verdict == Verdict::kWithScale;
}

// Whether it fails whatever the loss scale.
inline bool Fails(const FormatAdvice& format) {
  return format.verdict == Verdict::kFailsInForward || format.verdict == Verdict::kNoScaleIsSafe;
}

// Where the scale of a step lies.
enum class PathPlace : uint8_t { kInside, kBelow, kAbove, kNoneSafe };
PathPlace PlaceOf(const ReplayStep& step, const StepWindow& window);

PathInWindows CompareWithWindows(std::span<const ReplayStep> steps,
                                 std::span<const StepWindow> windows);

// Returns the source as if parts of the model had been kept in float32: without their tensors.
// Throws UsageError for a name of which the recording has no tensor.
StepSource KeptInFloat32(StepSource source, std::span<const std::string> names);

// Returns what a shadow says if these parts are kept: where all of its plan is, that it holds.
Shadow WithKept(Shadow shadow, std::span<const std::string> names);

// Advice in words and as JSON.

// Returns what is said of a format whose verdict is Verdict::kFailsInForward.
std::string ForwardFailure(const FormatAdvice& format);

// Returns such as "2^-3", and "1".
std::string Power(int exponent);

// What is said of one format, its name in this width: the verdict, and in further lines what to
// change where it fails.
std::string LineOn(const FormatAdvice& format, size_t width);

// The lines, as a report begins with them, each at most 80 columns wide.
std::string FormatAdviceLines(const Advice& advice);

// At how many steps each policy's scale was inside, below and above the windows, as a table; empty
// without policies.
std::string FormatPaths(const Advice& advice);

// The evidence: a table of the formats, what bounds their windows, and the `top` tensors at risk.
std::string FormatAdviceDetails(const Advice& advice, size_t top);

// The scale windows over the steps as a compact text plot, with the paths of policies in them.
struct PlottedPath {
  std::string name;
  std::span<const ReplayStep> steps;
};

// Plots log2 of the loss scale over the steps in at most `width` columns and `height` (> 1) rows.
// '.' marks scales that are safe at all steps of the column, 'A', 'B', ... where the scale of a
// policy was, in lower case where it was not safe. A row is labeled with the scales that it
// covers; rows with nothing in them are left out. A legend explains each sign, and says how many of
// `all_paths` are drawn. Empty without steps.
std::string PlotWindows(std::span<const StepWindow> windows, std::span<const PlottedPath> paths,
                        size_t all_paths, size_t width, size_t height);

// The object "verdict" of advice that lives until it is told; `rounding`: of a sweep.
TellRows RowsOf(const Advice& advice, std::string_view rounding = "");
void AddAdviceKeys(std::vector<KeyTable>& tables);

}  // namespace dlsim::sim
