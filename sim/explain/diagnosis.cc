// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

#include "sim/base/quantity.h"
#include "sim/explain/loss_window.h"

namespace dlsim::sim {
namespace {

// Returns the stretch with the skipped step that is judged: the one of `steps[tail]`, else the
// first. Nothing if no stretch reports one.
std::optional<SkipPlace> JudgedSkip(const ScalePath& path, std::span<const LoggedStep> steps,
                                    const SkipSummary& skips) {
  const bool diverges = skips.kind == SkipKind::kDivergence && skips.tail;
  const size_t tail = diverges ? *skips.tail : 0;
  const size_t from = diverges ? steps[tail].line : 0;
  for (size_t i = 0; i < path.stretches.size(); ++i) {
    const Stretch& stretch = path.stretches[i];
    if (stretch.overflows.empty() || stretch.line < from) continue;
    // Of one stretch some may come before the divergence.
    const auto before =
        static_cast<size_t>(std::ranges::count_if(steps.first(tail), [&](const LoggedStep& step) {
          return step.overflow && step.line == stretch.line;
        }));
    return SkipPlace{i, std::min(before, stretch.overflows.size() - 1)};
  }
  return std::nullopt;
}

// "the loss is nan", or what Megatron-LM counts.
std::string LossText(const PrintedLoss& loss) {
  if (loss.skipped.value_or(0) > 0) {
    if (loss.nonfinite.value_or(0) == 0)
      return "no skipped iteration had a loss that is not finite";
    return fmt::format("{} of {} skipped {} had a loss that is not finite", *loss.nonfinite,
                       *loss.skipped, *loss.skipped == 1 ? "iteration" : "iterations");
  }
  if (std::isfinite(loss.value)) return fmt::format("the loss is finite ({:.5g})", loss.value);
  return fmt::format("the loss is {}", loss.value);
}

// The losses after a finite one, from the first that is not finite on.
std::span<const PrintedLoss> WrongAfter(const ScalePath& path, size_t line) {
  const std::span<const PrintedLoss> losses = path.losses.printed;
  const auto wrong = std::ranges::find_if(
      losses, [&](const PrintedLoss& loss) { return loss.line > line && IsNonfinite(loss); });
  return {wrong, losses.end()};
}

// Steps that were skipped with a scale that could fall no more, or that enlarged nothing.
std::string FloorText(const ScalePath& path, std::span<const LoggedStep> steps,
                      const BracketTotals& totals) {
  std::optional<double> lowest;
  for (const LoggedStep& step : steps) {
    if (step.overflow && step.scale > 0) lowest = std::min(lowest.value_or(step.scale), step.scale);
  }
  if (!lowest || !totals.skipped_above || (*lowest > 1 && !path.stopped_at_line)) return "";
  return fmt::format(
      "; a step was skipped even at a scale of {}: a gradient is above {:.5g} unscaled, or not "
      "finite at any scale",
      ScaleText(*lowest), *totals.skipped_above);
}

// "the loss is nan from line 3 on"; empty if all losses are finite.
std::string NonfiniteText(const ScalePath& path) {
  const std::span<const PrintedLoss> losses = path.losses.printed;
  const std::span<const PrintedLoss> wrong(std::ranges::find_if(losses, IsNonfinite), losses.end());
  if (wrong.empty()) return "";
  const auto place = [](const PrintedLoss& loss) {
    return loss.line == 0 && loss.step ? fmt::format("step {}", *loss.step)
                                       : fmt::format("line {}", loss.line);
  };
  const PrintedLoss& first = wrong.front();
  std::string text = std::isfinite(first.value) ? "the loss is not finite"
                                                : fmt::format("the loss is {}", first.value);
  const auto finite = std::ranges::find_if_not(wrong, IsNonfinite);
  if (finite != wrong.end()) {
    text += fmt::format(" at {}, and finite again at {}", place(first), place(*finite));
  } else if (wrong.size() > 1) {
    text += fmt::format(" from {} on", place(first));
  } else {
    text += fmt::format(" at {}, the last one", place(first));
  }
  const bool printed_0 = first.over == LossOver::kFinite && first.value == 0;
  return text + (printed_0 ? " (where all losses of a line are NaN, it shows 0)" : "");
}

Diagnosis WithoutSkip(const ScalePath& path) {
  const std::string wrong = NonfiniteText(path);
  return {.evidence = "the log shows no skipped step" + (wrong.empty() ? "" : ", but " + wrong)};
}

// Of a log that prints no scale, but losses or gradient norms.
Diagnosis WithoutScale(const ScalePath& path) {
  std::string wrong = NonfiniteText(path);
  if (wrong.empty()) wrong = "a gradient norm is not finite, with a finite loss";
  return {.evidence = wrong +
                      "; this log prints no loss scale, so it is unknown whether the forward or "
                      "the backward pass failed: record some steps with dlsim.Recorder"};
}

// The texts around the place of a loss.
std::string AtStep(const PrintedLoss& loss, std::string_view where) {
  return fmt::format("{} at {} (line {})", LossText(loss), where, loss.line);
}

constexpr std::string_view kForwardText =
    ": consistent with an overflow in the forward pass, or with data or weights that are already "
    "broken; a lower scale cannot help";

}  // namespace

Diagnosis Diagnose(const ScalePath& path, std::span<const LoggedStep> steps,
                   const SkipSummary& skips, const BracketTotals& totals) {
  if (path.stretches.empty()) return WithoutScale(path);
  const std::optional<SkipPlace> place = JudgedSkip(path, steps, skips);
  if (!place) return WithoutSkip(path);
  const SkipLoss loss = FindSkipLoss(path, *place);
  const bool diverges = skips.kind == SkipKind::kDivergence;
  const std::string_view where = diverges && skips.tail_skips < skips.skipped
                                     ? "the first skipped step of the divergence"
                                     : "the first skipped step";
  if (loss.nonfinite) {
    return {FailureSide::kForward, AtStep(*loss.nonfinite, where) + std::string(kForwardText)};
  }
  if (!loss.finite) return {FailureSide::kUnknown, loss.why};
  const std::string first = AtStep(*loss.finite, where);
  const std::span<const PrintedLoss> wrong = WrongAfter(path, loss.finite->line);
  if (wrong.size() > 1 && std::ranges::all_of(wrong, IsNonfinite)) {
    return {FailureSide::kForward, fmt::format("{}, but not from line {} to the end{}", first,
                                               wrong.front().line, kForwardText)};
  }
  const std::string more =
      wrong.empty()
          ? FloorText(path, steps, totals)
          : fmt::format(
                "; later, at line {}, the loss is not finite, which points to the forward pass",
                wrong.front().line);
  return {FailureSide::kBackward,
          first + ": consistent with an overflow in the backward pass" + more};
}

}  // namespace dlsim::sim
