// SPDX-License-Identifier: Apache-2.0
// What follows from the scale windows of the steps: the verdict, and where a policy's path lies.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dlsim/sim/advice.h"
#include "dlsim/sim/replay.h"
#include "sim/advice/windows.h"

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

// Formats are ranked: one that needs no scale first, then those with a scale, by the steps at which
// it is not safe and what the tensors lose. `windows` has at least one format and step.
// `tensors`: the pattern of those that were read.
Advice Advise(std::span<const FormatWindows> windows, const std::string& tensors = "*");

// What the windows of all steps say, without what to change.
Advice WindowsOf(const StepSource& source, const AdviceRequest& request,
                 const ReplayOptions& options);

// Adds what was found of scaled formats, and says it in the lines.
void AddScaled(std::vector<ScaledAdvice> scaled, Advice& advice);

}  // namespace dlsim::sim
