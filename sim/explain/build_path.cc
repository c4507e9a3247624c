// SPDX-License-Identifier: Apache-2.0
// Joins what the lines of a log say to stretches of steps.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "dlsim/error.h"
#include "sim/explain/log_start.h"
#include "sim/explain/path_notes.h"
#include "sim/explain/read_log.h"

namespace dlsim::sim {
namespace {

using Kind = LogEvent::Kind;

// Of a log: each is run through, and takes some bytes.
constexpr int64_t kMostSteps = 10'000'000;

// The month in which DeepSpeed 0.17.1 was released, June 2025.
constexpr int kMonthOf0171 = 2025 * 12 + 5;

DeepSpeedScaler ScalerOfDeepSpeed(const std::vector<LogEvent>& events) {
  const auto scales = [](const LogEvent& e) {
    return e.stack == LogStack::kDeepSpeed &&
           (e.kind == Kind::kOverflow || e.kind == Kind::kGrowth);
  };
  if (std::ranges::none_of(events, scales)) return DeepSpeedScaler::kNone;
  if (std::ranges::any_of(events, &LogEvent::fp16_optimizer))
    return DeepSpeedScaler::kFp16Optimizer;
  const bool is_old = std::ranges::any_of(
      events, [](const LogEvent& e) { return e.month.value_or(kMonthOf0171) < kMonthOf0171; });
  return is_old ? DeepSpeedScaler::kBefore0171 : DeepSpeedScaler::kNewest;
}

class PathBuilder {
 public:
  explicit PathBuilder(LogEvents log) : events_(std::move(log.events)) {
    path_.notes = std::move(log.notes);
    path_.bounds_nothing = log.bounds_nothing;
    path_.losses = std::move(log.losses);
    if (events_.empty()) path_.stack = LogStack::kKeyValue;
    for (LogEvent& event : events_) {
      if (event.interval) path_.stated_interval = event.interval;
      const bool is_zero =
          (event.used && event.used->value == 0) || (event.next && event.next->value == 0);
      if (is_zero && !path_.zero_at_line) path_.zero_at_line = event.line;
      for (std::optional<PrintedNumber>* scale : {&event.used, &event.next}) {
        if (*scale && (*scale)->value == 0) *scale = PrintedNumber{};  // not what rounds to it
      }
      if (path_.stack == LogStack::kTable ||
          (event.stack != LogStack::kFairseq && !event.key_value)) {
        path_.stack = event.stack;
      }
    }
    path_.deepspeed = ScalerOfDeepSpeed(events_);
    has_records_ = std::ranges::any_of(events_, IsRecord);
    shows_next_ = ShowsNextScale(events_);
    start_ = FindStart(events_, shows_next_);
    path_.from_start = start_.of_training;
    path_.first_step = start_.done + start_.first_index;
    done_ = start_.done;
    skipped_total_ = start_.skipped_total;
  }

  ScalePath Build() {
    for (const LogEvent& event : events_) {
      if (stopped_) break;
      if (event.kind == Kind::kOverflow) AddOverflow(event);
      if (event.kind == Kind::kGrowth) AddGrowth(event);
      if (IsRecord(event)) AddRecord(event);
      if (event.kind == Kind::kSeen) AddSeen(event);
      if (event.kind == Kind::kStopped) path_.stopped_at_line = event.line;
    }
    Flush();
    FallToSeen();
    AddPathNotes(left_out_, events_, path_.notes);
    return std::move(path_);
  }

 private:
  // What is taken for a step may be a time.
  void CheckSteps(int64_t end, const LogEvent& event) const {
    const int64_t steps = end - (path_.first_step - start_.first_index);
    if (steps <= kMostSteps) return;
    throw InputError("line " + std::to_string(event.line), "step number too far from the first one",
                     "at most " + std::to_string(kMostSteps), std::to_string(steps));
  }

  // Returns how many steps were done when the record was written.
  int64_t EndOf(const LogEvent& event) const {
    if (event.kind == Kind::kUpdates) return *event.number + overflows_;
    return *event.number + 1 - start_.first_index;
  }

  void AddOverflow(const LogEvent& event) {
    if (!event.number) {
      pending_.push_back(&event);
      ++overflows_;
      if (!has_records_) Flush();
      return;
    }
    if (*event.number < done_) return;  // another rank's copy
    CheckSteps(*event.number + 1, event);
    ++overflows_;
    ++placed_;
    Stretch stretch = {.line = event.line};
    stretch.steps = *event.number + 1 - done_;
    stretch.overflows.push_back({event.used, event.next, event.line});
    stretch.last = LastStep::kSkipped;
    path_.stretches.push_back(std::move(stretch));
    done_ = *event.number + 1;
  }

  // Each message that no count of steps frames ends a stretch of its own.
  void Flush() {
    for (const LogEvent* const event : pending_) {
      Stretch stretch = {.line = event->line};
      stretch.overflows.push_back({event->used, event->next, event->line});
      stretch.last = LastStep::kSkipped;
      stretch.announced = event->stack == LogStack::kMxnet;
      stretch.hides_overflows =
          event->stack == LogStack::kColossalAi || event->stack == LogStack::kPaddle;
      path_.stretches.push_back(std::move(stretch));
    }
    pending_.clear();
  }

  // Where there are records it says nothing without its number: they count the steps before it,
  // too.
  void AddGrowth(const LogEvent& event) {
    if (event.number ? *event.number < done_ : has_records_) return;
    Flush();
    Stretch stretch = {.line = event.line};
    if (event.number) {
      CheckSteps(*event.number + 1, event);
      stretch.steps = *event.number + 1 - done_;
      done_ = *event.number + 1;
    }
    stretch.last = LastStep::kApplied;
    stretch.announced = event.stack == LogStack::kMxnet;
    stretch.used = event.used;
    stretch.next = event.next;
    path_.stretches.push_back(std::move(stretch));
  }

  void AddSeen(const LogEvent& event) {
    if (!seen_ || event.used->value < seen_->used->value) seen_ = event;
  }

  // A log that ends with such a line: each halving is a step.
  void FallToSeen() {
    if (!seen_ || FallsTo(seen_->used) == 0) return;
    Stretch stretch = {.line = seen_->line, .steps = FallsTo(seen_->used)};
    PresumeOverflows(*seen_, seen_->used, stretch);
    stretch.next = seen_->used;
    stretch.last = LastStep::kSkipped;
    path_.stretches.push_back(std::move(stretch));
  }

  void AddRecord(LogEvent event) {
    if (event.epoch && epoch_ && *event.epoch > *epoch_ && *event.number < last_number_) {
      epoch_start_ += last_number_ + 1 - start_.first_index;
      ++left_out_.epochs;
    } else if (event.epoch && epoch_ && *event.epoch < *epoch_) {
      path_.notes.push_back(
          fmt::format("the log goes back to epoch {} at line {}: only the lines before it are read",
                      *event.epoch, event.line));
      stopped_ = true;
      return;
    }
    epoch_ = event.epoch;
    last_number_ = *event.number;
    *event.number += epoch_start_;
    if (EndOf(event) <= done_ && !path_.stretches.empty()) return AddEarlier(event);
    Append(event);
  }

  // A record of steps that are done: a copy, or training went back to a checkpoint.
  void AddEarlier(const LogEvent& event) {
    if (event.kind == Kind::kUpdates || EndOf(event) == done_) return;
    while (!path_.stretches.empty() && done_ >= EndOf(event)) {
      done_ -= path_.stretches.back().steps.value_or(0);
      path_.stretches.pop_back();
      ++left_out_.stretches;
    }
    const Stretch* const kept = path_.stretches.empty() ? nullptr : &path_.stretches.back();
    last_scale_.reset();
    if (kept && kept->next) last_scale_ = kept->next->value;
    if (!kept && done_ >= EndOf(event)) Restart(event);
    Append(event);
  }

  // The record comes before everything that was read until then.
  void Restart(const LogEvent& event) {
    if (CountsFromZero(event)) start_.first_index = 0;
    const auto overflows = static_cast<int64_t>(pending_.size());
    done_ = std::max<int64_t>(EndOf(event) - StepsImplied(event, overflows, 0, shows_next_), 0);
    path_.from_start = done_ == 0;
    path_.first_step = done_ + start_.first_index;
  }

  void Append(const LogEvent& event) {
    const bool counts_applied = event.kind == Kind::kUpdates && pending_.empty();
    if (counts_applied) overflows_ += FallsTo(event.next);  // no message reports them
    if (counts_applied && event.is_rounded_to_zero && last_scale_.value_or(0) >= 1) {
      path_.zero_at_line = event.line;
    }
    const int64_t end = EndOf(event);
    CheckSteps(end, event);
    const bool shows_next = ShowsNext(event, shows_next_);
    const bool alone = !shows_next && event.overflow && end - done_ == 1;
    if (!alone) {
      const int64_t state_end = end - (shows_next ? 0 : 1);
      AppendUntil(state_end, event, event.next ? event.next : event.used);
    }
    if (shows_next || !event.overflow) return;
    Stretch own = {.line = event.line, .steps = 1};
    own.used = event.used;
    if (!path_.stretches.empty()) path_.stretches.back().next = event.used;
    MarkLast(*event.overflow, own);
    path_.stretches.push_back(std::move(own));
    done_ = end;
  }

  // Adds the steps up to a number of done ones, after which the scale is `next`.
  void AppendUntil(int64_t end, const LogEvent& event, const std::optional<PrintedNumber>& next) {
    Stretch stretch = {.line = event.line, .steps = end - done_};
    for (const LogEvent* const overflow : pending_) {
      stretch.overflows.push_back({overflow->used, overflow->next, overflow->line});
    }
    pending_.clear();
    LeaveOutSurplus(stretch);
    AddCounted(event, stretch);
    const bool knows = event.counts_falls || (event.overflow && stretch.steps == 1);
    if (!knows && stretch.overflows.empty()) PresumeOverflows(event, next, stretch);
    if (event.kind == Kind::kUpdates && stretch.steps > 0) stretch.last = LastStep::kApplied;
    if (event.overflow && ShowsNext(event, shows_next_)) MarkLast(*event.overflow, stretch);
    stretch.next = next;
    if (next) last_scale_ = next->value;
    seen_.reset();
    if (!TellsNothing(stretch)) path_.stretches.push_back(std::move(stretch));
    done_ = end;
  }

  // True where a line repeats the scale after the step that the line before it told.
  bool TellsNothing(const Stretch& stretch) const {
    return stretch.steps == 0 && stretch.overflows.empty() && !path_.stretches.empty() &&
           path_.stretches.back().next == stretch.next;
  }

  // Of messages that are more than the steps, the last ones count.
  void LeaveOutSurplus(Stretch& stretch) {
    auto& overflows = stretch.overflows;
    const int64_t surplus = static_cast<int64_t>(overflows.size()) - *stretch.steps;
    if (surplus <= 0) return;
    overflows.erase(overflows.begin(), overflows.begin() + surplus);
    left_out_.surplus += surplus;
  }

  // Returns how often the scale was halved since the last one that is known; 0 if it did not fall.
  int64_t FallsTo(const std::optional<PrintedNumber>& next) const {
    if (!next || !last_scale_ || !(next->value < *last_scale_)) return 0;
    const double halvings = std::round(std::log2(*last_scale_ / next->value));
    return halvings >= 1 && halvings < 1100 ? static_cast<int64_t>(halvings) : 1;
  }

  // Where no line reports skipped steps, or counts none: as few as explain the fall, each halving
  // the scale. DeepSpeed's engine has the training loop print a count of 0.
  void PresumeOverflows(const LogEvent& event, const std::optional<PrintedNumber>& next,
                        Stretch& stretch) {
    const bool saw_lower = seen_ && next && seen_->used->value < next->value;
    int64_t falls = FallsTo(saw_lower ? seen_->used : next);
    if (falls == 0 && IsFirstDescent(event, next, stretch)) falls = *stretch.steps;
    if (falls == 0) return;
    stretch.overflows.resize(static_cast<size_t>(std::min(falls, *stretch.steps)));
    if (saw_lower && !stretch.overflows.empty()) stretch.overflows.back().next = seen_->used;
    const auto presumed = static_cast<int64_t>(stretch.overflows.size());
    left_out_.presumed += presumed;
    placed_ += presumed;
    if (event.skipped || event.skipped_total) left_out_.uncounted += presumed;
  }

  // A training begins with scales that overflow. If the last step of its first stretch does, those
  // before it, at the same scale or higher ones, do so too.
  bool IsFirstDescent(const LogEvent& event, const std::optional<PrintedNumber>& next,
                      const Stretch& stretch) const {
    constexpr double kHighestStart = 0x1p32;
    if (!path_.stretches.empty() || !path_.from_start || !next || !event.overflow.value_or(false)) {
      return false;
    }
    return std::ldexp(next->value, static_cast<int>(std::min<int64_t>(*stretch.steps, 2000))) <=
           kHighestStart;
  }

  // Counted overflows of which no message states more.
  void AddCounted(const LogEvent& event, Stretch& stretch) {
    const auto named = static_cast<int64_t>(stretch.overflows.size());
    int64_t counted = event.skipped.value_or(0);
    if (event.skipped_total) {
      counted = *event.skipped_total - skipped_total_ - placed_;
      skipped_total_ = *event.skipped_total;
    }
    placed_ = event.skipped_total ? 0 : placed_ + std::max(named, counted);
    if (counted <= named || counted > stretch.steps) return;
    stretch.overflows.assign(static_cast<size_t>(counted), LoggedOverflow{});
  }

  static void MarkLast(bool overflow, Stretch& stretch) {
    stretch.last = overflow ? LastStep::kSkipped : LastStep::kApplied;
    if (overflow && stretch.overflows.empty() && stretch.steps != 0) {
      stretch.overflows.emplace_back();
    }
  }

  std::vector<LogEvent> events_;
  ScalePath path_;
  std::vector<const LogEvent*> pending_;  // overflows since the last record
  LogStart start_;
  int64_t done_ = 0;  // steps before the next stretch
  int64_t overflows_ = 0;
  int64_t skipped_total_ = 0;
  int64_t last_number_ = 0;
  std::optional<int64_t> epoch_;
  LeftOut left_out_;
  std::optional<double> last_scale_;
  std::optional<LogEvent> seen_;  // the lowest scale since the last record, at some step
  int64_t placed_ = 0;            // overflows since the last total of skipped steps
  int64_t epoch_start_ = 0;       // steps before an epoch that counts from zero
  bool shows_next_ = false, stopped_ = false, has_records_ = false;
};

}  // namespace

ScalePath BuildPath(LogEvents log) { return PathBuilder(std::move(log)).Build(); }

}  // namespace dlsim::sim
