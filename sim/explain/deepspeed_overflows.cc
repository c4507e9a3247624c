// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/deepspeed_overflows.h"

#include <algorithm>
#include <deque>
#include <set>

namespace dlsim::sim {
namespace {

using Kind = LogEvent::Kind;

// "Reducing dynamic loss scale from 8.0 to 4.0", which each rank prints; a growth between two of
// them would have a line of its own.
bool IsFp16Optimizer(const LogEvent& event) {
  return event.stack == LogStack::kDeepSpeed && IsOverflowWithScale(event) && event.used &&
         event.next->value < event.used->value && !event.rank && !event.from_optimizer;
}

// The optimizer repeats what its loss scaler has just said.
void DropRepeatsOfOptimizer(std::vector<LogEvent>& events) {
  constexpr size_t kRecent = 2;
  std::deque<StatedScales> said;
  std::optional<StatedScales> before;  // of the event before, if FP16_Optimizer printed it
  const auto repeats = [&](const LogEvent& event) {
    const StatedScales scales = ScalesOf(event);
    const bool is_fp16_optimizer = IsFp16Optimizer(event);
    if (event.from_optimizer && std::ranges::count(said, scales) > 0) return true;
    if (is_fp16_optimizer && before == scales) return true;
    if (IsOverflowWithScale(event) && !event.from_optimizer &&
        (said.empty() || said.back() != scales)) {
      said.push_back(scales);
      if (said.size() > kRecent) said.pop_front();
    }
    if (event.kind == Kind::kGrowth) said.clear();
    before.reset();
    if (is_fp16_optimizer) before = scales;
    return false;
  };
  std::erase_if(events, repeats);
}

// An overflow whose scales are not stated.
bool IsNumberAlone(const LogEvent& event) {
  return event.kind == Kind::kOverflow && !event.next && event.number;
}

// "Grad overflow on iteration: 7" numbers an overflow, and the lines about its scales follow it;
// both appear once per rank. The numbers tell how many overflows there are.
class NumberedOverflows {
 public:
  void Add(LogEvent event) {
    if (event.kind != Kind::kOverflow) {
      if (event.kind == Kind::kGrowth) last_ = kNone;
      joined_.push_back(std::move(event));
    } else if (IsNumberAlone(event)) {
      if (numbers_.insert(*event.number).second) joined_.push_back(std::move(event));
    } else {
      AddScales(std::move(event));
    }
  }

  std::vector<LogEvent> Take() { return std::move(joined_); }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);

  void AddScales(LogEvent event) {
    const auto open = std::find_if(joined_.begin() + open_, joined_.end(), IsNumberAlone);
    open_ = open - joined_.begin();
    const bool repeats = last_ != kNone && SameScales(joined_[last_], event);
    if (open == joined_.end()) {
      if (repeats || !numbers_.empty()) return;
      joined_.push_back(std::move(event));  // its number is before the log's first line
      last_ = joined_.size() - 1;
      return;
    }
    // The scale cannot have grown from one iteration to the next: another rank's copy.
    if (repeats && *open->number == joined_[last_].number.value_or(-2) + 1) return;
    open->used = event.used;
    open->next = event.next;
    last_ = static_cast<size_t>(open_);
  }

  std::vector<LogEvent> joined_;
  std::set<int64_t> numbers_;
  std::ptrdiff_t open_ = 0;  // the first that may still be IsNumberAlone
  size_t last_ = kNone;      // the overflow whose scales came last
};

void JoinNumbers(std::vector<LogEvent>& events) {
  if (std::ranges::none_of(events, IsNumberAlone)) return;
  if (std::ranges::none_of(events, IsOverflowWithScale)) {
    std::erase_if(events, IsNumberAlone);
    return;
  }
  NumberedOverflows overflows;
  for (LogEvent& event : events) overflows.Add(std::move(event));
  events = overflows.Take();
  const auto first = std::ranges::find_if(
      events, [](const LogEvent& e) { return e.kind == Kind::kOverflow && e.number; });
  for (auto event = events.begin(); event != first; ++event) {
    if (event->kind == Kind::kOverflow && *first->number > 0) event->number = *first->number - 1;
  }
}

// FP16_Optimizer names the interval before the growth, and both appear once per rank. The interval
// counts from the overflow before it, whose number gives that of the growth.
class Growths {
 public:
  // Returns whether the line adds something.
  bool Add(LogEvent& event) {
    if (event.kind == Kind::kOverflow) {
      overflow_ = event.number;
      intervals_ = 0;
      last_.reset();
    }
    if (event.kind == Kind::kSteps && event.number) done_ = *event.number;
    if (event.kind != Kind::kGrowth || event.stack != LogStack::kDeepSpeed) return true;
    if (!event.next) {
      interval_ = event.interval;
      return false;
    }
    if (last_ == ScalesOf(event)) return false;
    event.interval = interval_;
    if (overflow_ && interval_.value_or(0) > 0) Number(event);
    last_ = ScalesOf(event);
    return true;
  }

 private:
  void Number(LogEvent& event) {
    const int64_t first = *overflow_ + 1;
    const int64_t due = (std::max<int64_t>(done_ - first, 0) + *interval_ - 1) / *interval_;
    intervals_ = std::max(intervals_ + 1, due);
    event.number = first + intervals_ * *interval_;
  }

  std::optional<StatedScales> last_;
  std::optional<int64_t> interval_, overflow_;
  int64_t intervals_ = 0, done_ = 0;
};

}  // namespace

bool IsOverflowWithScale(const LogEvent& event) {
  return event.kind == Kind::kOverflow && event.next;
}

void JoinDeepSpeedOverflows(std::vector<LogEvent>& events) {
  DropRepeatsOfOptimizer(events);
  JoinNumbers(events);
  Growths growths;
  std::erase_if(events, [&](LogEvent& event) { return !growths.Add(event); });
}

}  // namespace dlsim::sim
