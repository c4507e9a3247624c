// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/one_voice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <set>
#include <string>

#include "dlsim/error.h"
#include "sim/explain/rank_copies.h"
#include "sim/tune/policy_family.h"

namespace dlsim::sim {
namespace {

using Kind = LogEvent::Kind;

// No image, adapter or augmentation is scaled by so much, and training with a loss scale has it.
constexpr double kHighScale = 0x1p13;

// A scale that has been rounded so far that it may be one of two powers of two; 0 is told.
bool IsVague(const PrintedNumber& number) {
  return number.value != 0 && (number.low <= 0 || number.high >= 2 * number.low);
}

bool SamePair(const LogEvent& a, const LogEvent& b) { return a.used == b.used && a.next == b.next; }

bool SameMessage(const LogEvent& a, const LogEvent& b) {
  return a.kind == b.kind && a.number == b.number && SamePair(a, b);
}

bool IsOverflowWithScale(const LogEvent& event) {
  return event.kind == Kind::kOverflow && event.next;
}

// "Reducing dynamic loss scale from 8.0 to 4.0", which each rank prints; a growth between two of
// them would have a line of its own.
bool IsFp16Optimizer(const LogEvent& event) {
  return event.stack == LogStack::kDeepSpeed && IsOverflowWithScale(event) && event.used &&
         event.next->value < event.used->value && !event.rank && !event.from_optimizer;
}

// The optimizer repeats what its loss scaler has just said.
void DropRepeatsOfOptimizer(std::vector<LogEvent>& events) {
  constexpr size_t kRecent = 2;
  std::deque<LogEvent> said;
  std::vector<LogEvent> kept;
  for (LogEvent& event : events) {
    const auto is_said = [&](const LogEvent& other) { return SamePair(other, event); };
    if (event.from_optimizer && std::ranges::any_of(said, is_said)) continue;
    if (IsFp16Optimizer(event) && !kept.empty() && IsFp16Optimizer(kept.back()) &&
        SamePair(kept.back(), event)) {
      continue;
    }
    if (IsOverflowWithScale(event) && !event.from_optimizer &&
        (said.empty() || !SamePair(said.back(), event))) {
      said.push_back(event);
      if (said.size() > kRecent) said.pop_front();
    }
    if (event.kind == Kind::kGrowth) said.clear();
    kept.push_back(std::move(event));
  }
  events = std::move(kept);
}

// "Grad overflow on iteration: 7" numbers an overflow, and the lines about its scales follow it;
// both stand once per rank. The numbers tell how many overflows there are.
class NumberedOverflows {
 public:
  void Add(LogEvent event) {
    if (event.kind != Kind::kOverflow) {
      if (event.kind == Kind::kGrowth) last_ = kNone;
      joined_.push_back(std::move(event));
    } else if (!event.next && event.number) {
      if (numbers_.insert(*event.number).second) joined_.push_back(std::move(event));
    } else {
      AddScales(std::move(event));
    }
  }

  std::vector<LogEvent> Take() { return std::move(joined_); }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);

  void AddScales(LogEvent event) {
    const auto lacks = [](const LogEvent& e) {
      return e.kind == Kind::kOverflow && !e.next && e.number;
    };
    const auto open = std::ranges::find_if(joined_, lacks);
    const bool repeats = last_ != kNone && SamePair(joined_[last_], event);
    if (open == joined_.end()) {
      if (repeats || !numbers_.empty()) return;
      joined_.push_back(std::move(event));  // its number stands before the log's first line
      last_ = joined_.size() - 1;
      return;
    }
    // The scale cannot have grown from one iteration to the next: another rank's copy.
    if (repeats && *open->number == joined_[last_].number.value_or(-2) + 1) return;
    open->used = event.used;
    open->next = event.next;
    last_ = static_cast<size_t>(open - joined_.begin());
  }

  std::vector<LogEvent> joined_;
  std::set<int64_t> numbers_;
  size_t last_ = kNone;  // the overflow whose scales came last
};

void JoinNumbers(std::vector<LogEvent>& events) {
  const auto is_number = [](const LogEvent& e) {
    return e.kind == Kind::kOverflow && !e.next && e.number;
  };
  if (std::ranges::none_of(events, is_number)) return;
  if (std::ranges::none_of(events, IsOverflowWithScale)) {
    std::erase_if(events, is_number);
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

// Ranks that name themselves: the first one speaks for all.
void KeepOneRank(LogEvents& log) {
  std::optional<int64_t> first;
  std::set<int64_t> others;
  for (const LogEvent& event : log.events) {
    if (event.rank && !first) first = event.rank;
    if (event.rank && event.rank != first) others.insert(*event.rank);
  }
  if (others.empty()) return;
  std::erase_if(log.events, [&](const LogEvent& e) { return e.rank && e.rank != first; });
  log.notes.push_back(fmt::format("rank {} is read; {} more {} the same", *first, others.size(),
                                  others.size() == 1 ? "prints" : "print"));
}

// Ranks that do not: every message stands once for each. Equal ones alone could be overflows of one
// rank at the minimal scale.
void KeepOneOfEqual(LogEvents& log) {
  std::vector<size_t> messages, record;  // and how many records stand before each
  size_t records = 0;
  bool tagged = true;
  for (size_t i = 0; i < log.events.size(); ++i) {
    const LogEvent& event = log.events[i];
    if (event.kind == Kind::kSteps || event.kind == Kind::kUpdates) ++records;
    if (event.kind != Kind::kOverflow || event.number) continue;
    messages.push_back(i);
    record.push_back(records);
    tagged = tagged && event.rank;
  }
  const RankCopies copies = FindRankCopies(messages.size(), [&](size_t a, size_t b) {
    return record[a] == record[b] && SameMessage(log.events[messages[a]], log.events[messages[b]]);
  });
  if (copies.ranks < 2) return;
  std::vector<bool> keeps(log.events.size(), true);
  for (const size_t message : messages) keeps[message] = false;
  for (const size_t kept : copies.kept) keeps[messages[kept]] = true;
  std::vector<LogEvent> kept;
  for (size_t i = 0; i < keeps.size(); ++i) {
    if (keeps[i]) kept.push_back(std::move(log.events[i]));
  }
  log.events = std::move(kept);
  log.notes.push_back(fmt::format("each message appears {} times, once per {}", copies.ranks,
                                  tagged ? "engine: all have the same rank" : "rank"));
}

bool IsCount(const LogEvent& event) {
  return event.kind == Kind::kSteps && event.stack == LogStack::kDeepSpeed && event.number;
}

// An engine counts its steps once; a training that was resumed may count one twice.
void RequireOneEngine(const std::vector<LogEvent>& events) {
  const LogEvent* last = nullptr;
  const LogEvent* again = nullptr;
  size_t counts = 0, doubled = 0;
  for (const LogEvent& event : events) {
    if (!IsCount(event)) continue;
    ++counts;
    if (last && last->number == event.number &&
        (last->skipped_total != event.skipped_total ||
         last->learning_rate != event.learning_rate)) {
      ++doubled;
      if (!again) again = &event;
    }
    last = &event;
  }
  if (doubled < 2 && (doubled == 0 || counts > 3)) return;
  throw InputError("line " + std::to_string(again->line), "a second engine counts the same steps",
                   "a log of one engine",
                   fmt::format("step={} twice, with skipped={}", *again->number,
                               again->skipped_total.value_or(0)));
}

// The engine's own count and the line of the training loop tell of one step: the first has the
// skipped steps, the second the scale.
void JoinCounts(std::vector<LogEvent>& events) {
  const auto is_record = [](const LogEvent& e) { return e.kind == Kind::kSteps && e.number; };
  std::vector<LogEvent> joined;
  for (LogEvent& event : events) {
    const bool again = !joined.empty() && is_record(joined.back()) && is_record(event) &&
                       joined.back().number == event.number &&
                       IsCount(joined.back()) != IsCount(event);
    if (!again) {
      joined.push_back(std::move(event));
      continue;
    }
    LogEvent& last = joined.back();
    if (IsCount(last)) std::swap(last, event);
    last.skipped_total = event.skipped_total;
    if (last.skipped == 0) last.skipped.reset();
  }
  events = std::move(joined);
}

}  // namespace

void DropOtherScales(LogEvents& log) {
  bool powers = true;
  double highest = 0;
  for (LogEvent& event : log.events) {
    for (std::optional<PrintedNumber>* scale : {&event.used, &event.next}) {
      if (*scale && (*scale)->value < 0) scale->reset();
    }
    if (!event.bare_name || !event.used) continue;
    powers = powers && IsPowerOfTwo(event.used->value);
    highest = std::max(highest, event.used->value);
  }
  if (!powers || highest < kHighScale) {
    std::erase_if(log.events, [](const LogEvent& e) { return e.bare_name; });
  }
  const auto is_exact = [](const LogEvent& event) {
    return (event.used && !IsVague(*event.used)) || (event.next && !IsVague(*event.next));
  };
  if (std::ranges::any_of(log.events, is_exact)) return;
  for (LogEvent& event : log.events) event.used.reset(), event.next.reset();
}

void KeepOneVoice(LogEvents& log) {
  DropRepeatsOfOptimizer(log.events);
  JoinNumbers(log.events);
  KeepOneRank(log);
  KeepOneOfEqual(log);
  RequireOneEngine(log.events);
  JoinCounts(log.events);
}

}  // namespace dlsim::sim
