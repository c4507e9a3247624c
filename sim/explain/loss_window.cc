// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/loss_window.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>

namespace dlsim::sim {
namespace {

using Losses = std::span<const PrintedLoss>;

bool IsFinite(const PrintedLoss& loss) { return std::isfinite(loss.value); }

SkipLoss Unknown(std::string why) { return {.why = std::move(why)}; }
SkipLoss NotFinite(const PrintedLoss& loss) { return {.nonfinite = loss}; }

// Returns the losses of the lines after `first`, up to `last`.
Losses Between(Losses losses, size_t first, size_t last) {
  const auto begin = std::ranges::upper_bound(losses, first, {}, &PrintedLoss::line);
  const auto end = std::ranges::upper_bound(losses, last, {}, &PrintedLoss::line);
  return {begin, std::max(begin, end)};
}

// Why the finite losses of some kind say nothing of a skipped step; nothing if they do.
std::string_view Silence(LossOver over) {
  switch (over) {
    case LossOver::kApplied:
      return "the log prints a mean of the loss that leaves out skipped steps";
    case LossOver::kFinite:
      return "the log prints a mean of the loss in which values that are not finite are left out "
             "or replaced";
    case LossOver::kUnknown:
      return "the log prints a mean of the loss over some steps, or the loss of a step before";
    case LossOver::kStep:
    case LossOver::kSteps:
      break;
  }
  return {};
}

SkipLoss WhichOf(const PrintedLoss& loss, size_t overflows) {
  return Unknown(
      fmt::format("the loss at line {} is not finite, but the log does not say to which of {} "
                  "skipped steps it belongs",
                  loss.line, overflows));
}

// Finite losses: whether the reader that prints them speaks for all ranks.
SkipLoss Finite(const ScalePath& path, const PrintedLoss& loss) {
  if (path.losses.several_ranks && !loss.skipped) {
    return Unknown("several ranks print, and the loss of one says nothing about the others");
  }
  return {.finite = loss};
}

bool Follows(const PrintedLoss& loss, const PrintedLoss& before) {
  return loss.step && before.step && *loss.step == *before.step + 1;
}

// How many messages about overflows there are from line `first` on and before `last`.
size_t MessagesBetween(const ScalePath& path, size_t first, size_t last) {
  size_t count = 0;
  for (const Stretch& stretch : path.stretches) {
    count += static_cast<size_t>(std::ranges::count_if(
        stretch.overflows, [&](const auto& o) { return o.line >= first && o.line < last; }));
  }
  return count;
}

// Megatron-LM counts the skipped iterations whose loss is not finite.
SkipLoss OfCounts(const ScalePath& path, const PrintedLoss& loss, size_t overflows) {
  const int64_t skipped = loss.skipped.value_or(0);
  if (skipped == 0) {  // under DeepSpeed, where the mean leaves out none
    if (IsFinite(loss)) return Finite(path, loss);
    return overflows == 1 ? NotFinite(loss) : WhichOf(loss, overflows);
  }
  if (!loss.nonfinite) return Unknown(std::string(Silence(LossOver::kApplied)));
  if (*loss.nonfinite == 0) return Finite(path, loss);
  return *loss.nonfinite >= skipped ? NotFinite(loss) : WhichOf(loss, overflows);
}

// A loop may print the loss of a step before its message or after it: both neighbors count. On one
// line the loss comes before the message, as in progress bars.
SkipLoss AroundMessage(const ScalePath& path, size_t line) {
  const Losses losses = path.losses.printed;
  const auto next = std::ranges::upper_bound(losses, line, {}, &PrintedLoss::line);
  const PrintedLoss* const before = next == losses.begin() ? nullptr : &*std::prev(next);
  const PrintedLoss* const after = next == losses.end() ? nullptr : &*next;
  if (before && !IsFinite(*before)) return NotFinite(*before);
  if (!after) return Unknown("the log prints no loss after the first skipped step");
  const size_t overflows =
      MessagesBetween(path, std::max<size_t>(before ? before->line : 0, 1), after->line);
  if (after->skipped) return OfCounts(path, *after, overflows);
  if (!IsFinite(*after)) {
    return overflows == 1 ? NotFinite(*after) : WhichOf(*after, overflows);
  }
  if (const auto silence = Silence(after->over); !silence.empty()) {
    return Unknown(std::string(silence));
  }
  const bool is_first = !before && after->step && *after->step <= 1;
  const bool is_mean = after->over == LossOver::kSteps;
  if (is_mean || (overflows == 1 && (is_first || (before && Follows(*after, *before))))) {
    return Finite(path, *after);
  }
  return Unknown("the log does not print the loss of each step");
}

// What the loss of a record says of the steps since the record before.
SkipLoss OfRecord(const ScalePath& path, const Stretch& stretch, const PrintedLoss& loss,
                  const PrintedLoss* before) {
  const size_t overflows = stretch.overflows.size();
  if (loss.skipped) return OfCounts(path, loss, overflows);
  if (loss.epoch_mean && std::isfinite(*loss.epoch_mean)) return Finite(path, loss);
  if (loss.epoch_mean && before && before->epoch_mean && std::isfinite(*before->epoch_mean)) {
    PrintedLoss mean = loss;
    mean.value = *loss.epoch_mean;
    return overflows == 1 ? NotFinite(mean) : WhichOf(mean, overflows);
  }
  if (!IsFinite(loss)) return overflows == 1 ? NotFinite(loss) : WhichOf(loss, overflows);
  // The line of the step, or of the scale after it; else the step may be the one before.
  const bool is_sure = stretch.last == LastStep::kSkipped || !path.losses.scale_may_be_next;
  if (!is_sure && before && !IsFinite(*before)) return NotFinite(*before);
  if (const auto silence = Silence(loss.over); !silence.empty()) {
    return Unknown(std::string(silence));
  }
  const bool is_stated = is_sure || (before && Follows(loss, *before));
  if (loss.over == LossOver::kSteps || (stretch.steps == 1 && is_stated)) return Finite(path, loss);
  return Unknown("the log does not print the loss of each step");
}

// Lines with a loss between those that count steps.
SkipLoss BetweenRecords(const ScalePath& path, const Stretch& stretch, size_t previous) {
  const Losses losses = path.losses.printed;
  const Losses inside = Between(losses, previous, stretch.line);
  if (inside.empty()) return Unknown("the log prints no loss near the first skipped step");
  const PrintedLoss& last = inside.back();
  if (last.over == LossOver::kSteps) return OfRecord(path, stretch, last, nullptr);
  const auto wrong = static_cast<size_t>(
      std::ranges::count_if(inside, [](const PrintedLoss& loss) { return !IsFinite(loss); }));
  const auto& first_wrong = std::ranges::find_if_not(inside, IsFinite);
  if (wrong > 0) {
    const bool is_that = stretch.overflows.size() == 1 || wrong >= stretch.overflows.size();
    return is_that ? NotFinite(*first_wrong) : WhichOf(*first_wrong, stretch.overflows.size());
  }
  if (const auto silence = Silence(last.over); !silence.empty()) {
    return Unknown(std::string(silence));
  }
  const auto skips_one = [](const PrintedLoss& a, const PrintedLoss& b) { return !Follows(b, a); };
  const bool all = std::ranges::adjacent_find(inside, skips_one) == inside.end() && stretch.steps &&
                   inside.size() == static_cast<size_t>(*stretch.steps);
  if (all) return Finite(path, last);
  return Unknown("the log does not print the loss of each step");
}

}  // namespace

SkipLoss FindSkipLoss(const ScalePath& path, SkipPlace place) {
  if (path.losses.printed.empty()) return Unknown("the log prints no loss that dlsim recognizes");
  const Stretch& stretch = path.stretches[place.stretch];
  if (stretch.line == 0) return Unknown(std::string(Silence(LossOver::kFinite)));  // of a JSON
  const size_t message = stretch.overflows[place.overflow].line;
  if (message > 0) return AroundMessage(path, message);
  size_t previous = 0;
  for (size_t i = 0; i < place.stretch; ++i) {
    if (path.stretches[i].line < stretch.line) previous = path.stretches[i].line;
  }
  const Losses losses = path.losses.printed;
  const auto own = std::ranges::lower_bound(losses, stretch.line, {}, &PrintedLoss::line);
  if (own == losses.end() || own->line != stretch.line) {
    return BetweenRecords(path, stretch, previous);
  }
  const PrintedLoss* const before = own == losses.begin() ? nullptr : &*std::prev(own);
  return OfRecord(path, stretch, *own, before);
}

}  // namespace dlsim::sim
