// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/log_start.h"

#include <algorithm>
#include <optional>

namespace dlsim::sim {
namespace {

using Kind = LogEvent::Kind;

// The first record, the first one of a later step, and the overflows before them.
struct Opening {
  const LogEvent* first = nullptr;
  const LogEvent* second = nullptr;
  int64_t overflows = 0;               // without a number
  std::optional<int64_t> overflow_at;  // the number of the first that has one
};

Opening FindOpening(std::span<const LogEvent> events) {
  Opening opening;
  for (const LogEvent& event : events) {
    if (event.kind == Kind::kOverflow && !opening.first) {
      if (!event.number) ++opening.overflows;
      if (!opening.overflow_at) opening.overflow_at = event.number;
    }
    if (!IsRecord(event)) continue;
    if (!opening.first) opening.first = &event;
    if (*event.number > *opening.first->number) opening.second = &event;
    if (opening.second) break;
  }
  return opening;
}

// True if there are more overflows before the first record than steps before its own: they
// report its step, too, and its scale is the one after it.
bool MessagesLeaveNoStep(const std::vector<LogEvent>& events) {
  int64_t overflows = 0;
  for (const LogEvent& event : events) {
    if (event.kind == Kind::kOverflow && !event.number) ++overflows;
    if (IsRecord(event))
      return event.used && event.epoch <= 1 && overflows >= *event.number && overflows > 0;
  }
  return false;
}

}  // namespace

// Scales that a log shows once per step may be those that the step used or the next ones. Where
// skipped steps are marked, their own line or the one after shows the fall.
bool ShowsNextScale(const std::vector<LogEvent>& events) {
  if (MessagesLeaveNoStep(events)) return true;
  int64_t own = 0, after = 0;
  for (size_t i = 1; i < events.size(); ++i) {
    if (!events[i].used || !events[i - 1].used) continue;
    const bool falls = events[i].used->value < events[i - 1].used->value;
    if (falls && events[i].overflow.value_or(false)) ++own;
    if (falls && events[i - 1].overflow.value_or(false)) ++after;
  }
  return own > after;
}

bool IsRecord(const LogEvent& event) {
  const bool counts = event.kind == Kind::kSteps || event.kind == Kind::kUpdates;
  return counts && event.number && *event.number >= 0;
}

bool CountsFromZero(const LogEvent& first) {
  return first.kind == Kind::kSteps && *first.number == 0 && !first.skipped_total;
}

bool ShowsNext(const LogEvent& event, bool shows_next) { return !event.used || shows_next; }

int64_t StepsImplied(const LogEvent& record, int64_t overflows, int64_t interval, bool shows_next) {
  int64_t implied = ShowsNext(record, shows_next) ? 0 : 1;
  if (record.kind == Kind::kSteps) implied += overflows;
  if (record.overflow.value_or(false)) implied = std::max<int64_t>(implied, 1);
  if (record.skipped.value_or(0) > 0) implied = std::max(implied, interval);
  return implied;
}

// The first number states whether steps count from 0, and with the second whether the log begins
// with the training.
LogStart FindStart(std::span<const LogEvent> events, bool shows_next) {
  const Opening opening = FindOpening(events);
  LogStart start;
  if (!opening.first) {
    if (opening.overflow_at) start.first_index = 0;
    return start;
  }
  const LogEvent& first = *opening.first;
  if (CountsFromZero(first)) start.first_index = 0;
  // One record alone reports no steps before it, but for those that it counts.
  const int64_t interval = opening.second ? *opening.second->number - *first.number
                                          : std::max<int64_t>(first.skipped.value_or(0), 1);
  const int64_t end = *first.number + (first.kind == Kind::kSteps ? 1 - start.first_index : 0);
  start.of_training = end <= std::max<int64_t>(interval, 1) && first.epoch.value_or(0) <= 1;
  if (start.of_training && opening.second) return start;
  // Its count of skipped steps, or of updates, may be that of the messages before it.
  const bool reports_all = first.kind == Kind::kUpdates
                               ? opening.overflows > 0
                               : first.skipped_total && *first.skipped_total == opening.overflows;
  if (!opening.second && reports_all) {
    start.of_training = true;
    return start;
  }
  const int64_t implied = StepsImplied(first, opening.overflows, interval, shows_next);
  start.done = std::max<int64_t>(std::min(end - implied, opening.overflow_at.value_or(end)), 0);
  start.of_training = start.of_training || (!opening.second && start.done == 0);
  start.skipped_total = std::max<int64_t>(first.skipped_total.value_or(0) - opening.overflows, 0);
  return start;
}

}  // namespace dlsim::sim
