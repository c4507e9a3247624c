// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/one_voice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "dlsim/error.h"
#include "sim/base/quantity.h"
#include "sim/explain/deepspeed_overflows.h"
#include "sim/explain/log_start.h"
#include "sim/explain/rank_copies.h"

namespace dlsim::sim {
namespace {

using Kind = LogEvent::Kind;

// No image, adapter or augmentation is scaled by so much, and training with a loss scale has it.
constexpr double kHighScale = 0x1p13;

// A scale that has been rounded so far that it may be one of two powers of two; 0 is printed.
bool IsVague(const PrintedNumber& number) {
  return number.value != 0 && (number.low <= 0 || number.high >= 2 * number.low);
}

bool SameMessage(const LogEvent& a, const LogEvent& b) {
  return a.kind == b.kind && a.number == b.number && SameScales(a, b);
}

// Two stacks report one overflow: Paddle and PaddleNLP, a scaler and the script that has it. The
// wording that comes first speaks; one of the two may leave out the scale that was used.
void DropOtherWordings(std::vector<LogEvent>& events) {
  std::optional<StatedScales> last;
  std::optional<uint8_t> wording;
  const auto repeats = [&](const LogEvent& event) {
    if (!IsOverflowWithScale(event) || event.number) return false;
    if (!wording) wording = event.wording;
    if (event.wording == *wording) {
      last = ScalesOf(event);
      return false;
    }
    return last && event.next->value == last->next->value &&
           (!event.used || !last->used || event.used->value == last->used->value);
  };
  std::erase_if(events, repeats);
}

// ColossalAI, MXNet and Marian print each growth: without one between, an equal fall to a scale
// above all floors is the copy of another rank.
void DropCopiesBeforeGrowth(LogEvents& log) {
  const auto prints_growth = [](const LogEvent& e) {
    return e.stack == LogStack::kColossalAi || e.stack == LogStack::kMxnet ||
           e.stack == LogStack::kMarian;
  };
  std::optional<LogEvent> last;
  const auto is_copy = [&](const LogEvent& event) {
    const bool is_fall = IsOverflowWithScale(event) && prints_growth(event);
    if (is_fall && last && SameMessage(*last, event) && event.next->value > 1) return true;
    if (is_fall) last = event;
    if (event.kind == Kind::kGrowth || IsRecord(event)) last.reset();
    return false;
  };
  const size_t dropped = std::erase_if(log.events, is_copy);
  if (dropped == 0) return;
  log.losses.several_ranks = true;
  log.notes.push_back(
      fmt::format("{} repeated without growth in between: assumed to be {} of other ranks",
                  dropped == 1 ? "one message is" : fmt::format("{} messages are", dropped),
                  dropped == 1 ? "that" : "those"));
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
  log.losses.several_ranks = true;
  std::map<int64_t, std::vector<LogEvent>> by_rank;
  for (const LogEvent& event : log.events) {
    if (event.rank) by_rank[*event.rank].push_back(event);
  }
  const std::vector<LogEvent>& own = by_rank[*first];
  const bool same = std::ranges::all_of(by_rank, [&](const auto& rank) {
    const size_t count = std::min(own.size(), rank.second.size());  // the log may be cut
    return std::equal(own.begin(), own.begin() + static_cast<ptrdiff_t>(count), rank.second.begin(),
                      SameMessage);
  });
  std::erase_if(log.events, [&](const LogEvent& e) { return e.rank && e.rank != first; });
  log.notes.push_back(fmt::format("rank {} is read; {} more {} {}", *first, others.size(),
                                  others.size() == 1 ? "prints" : "print",
                                  same ? "the same" : "other messages, as another engine does"));
}

// Ranks that do not: every message appears once for each. Equal ones alone could be overflows of
// one rank at the minimal scale.
void KeepOneOfEqual(LogEvents& log) {
  std::vector<size_t> messages, record;  // and how many records come before each
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
  log.losses.several_ranks = true;
  log.notes.push_back(fmt::format("each message appears {} times, once per {}", copies.ranks,
                                  tagged ? "engine: all have the same rank" : "rank"));
}

bool IsCount(const LogEvent& event) {
  return event.kind == Kind::kSteps && event.stack == LogStack::kDeepSpeed && event.number;
}

// An engine, or a run, counts its steps once; a training that was resumed may count one twice.
bool CountsAgain(const LogEvent& last, const LogEvent& event) {
  if (last.wording != event.wording || last.number != event.number || last.epoch != event.epoch) {
    return false;
  }
  if (IsCount(event)) {
    return last.skipped_total != event.skipped_total || last.learning_rate != event.learning_rate;
  }
  return event.kind == Kind::kSteps && (last.used || last.next) && !SameScales(last, event);
}

void RequireOneEngine(const std::vector<LogEvent>& events) {
  const LogEvent* last = nullptr;
  const LogEvent* again = nullptr;
  size_t counts = 0, doubled = 0;
  for (const LogEvent& event : events) {
    if (event.kind != Kind::kSteps || !event.number) continue;
    if (last && last->wording != event.wording && !IsCount(event)) continue;
    ++counts;
    if (last && CountsAgain(*last, event)) {
      ++doubled;
      if (!again) again = &event;
    }
    last = &event;
  }
  if (doubled < 2 && (doubled == 0 || counts > 3)) return;
  if (!IsCount(*again)) {
    throw InputError("line " + std::to_string(again->line), "another scale of the same step",
                     "a log of one run, with one loss scaler",
                     "step " + std::to_string(*again->number) + " twice");
  }
  throw InputError("line " + std::to_string(again->line), "a second engine counts the same steps",
                   "a log of one engine",
                   fmt::format("step={} twice, with skipped={}", *again->number,
                               again->skipped_total.value_or(0)));
}

// The engine's own count and the line of the training loop report one step: the first has the
// skipped steps, the second the scale.
void JoinCounts(std::vector<LogEvent>& events) {
  const auto is_record = [](const LogEvent& e) { return e.kind == Kind::kSteps && e.number; };
  size_t joined = 0;
  for (LogEvent& event : events) {
    LogEvent* const last = joined > 0 ? &events[joined - 1] : nullptr;
    const bool again = last && is_record(*last) && is_record(event) &&
                       last->number == event.number && IsCount(*last) != IsCount(event);
    if (!again) {
      LogEvent& place = events[joined++];
      if (&place != &event) place = std::move(event);
      continue;
    }
    if (IsCount(*last)) std::swap(*last, event);
    last->skipped_total = event.skipped_total;
    if (last->skipped == 0) last->skipped.reset();
  }
  events.resize(joined);
}

void NoteNoScaler(LogEvents& log) {
  const auto states_more = [](const LogEvent& e) {
    const auto is_other = [](const std::optional<PrintedNumber>& scale) {
      return scale && (scale->value != 1 || IsVague(*scale));
    };
    const bool skips = e.kind == Kind::kOverflow || e.overflow.value_or(false) ||
                       e.skipped.value_or(0) > 0 || e.skipped_total.value_or(0) > 0;
    return skips || e.kind == Kind::kStopped || is_other(e.used) || is_other(e.next);
  };
  if (std::ranges::any_of(log.events, states_more)) return;
  log.bounds_nothing = true;
  log.notes.push_back(
      "the loss scale is 1 throughout, which is also printed without loss scaling: no bound");
}

}  // namespace

void DropOtherScales(LogEvents& log) {
  bool powers = true;
  double highest = 0;
  for (LogEvent& event : log.events) {
    for (std::optional<PrintedNumber>* scale : {&event.used, &event.next}) {
      if (*scale && !((*scale)->value >= 0)) scale->reset();  // NaN, too
    }
    if (!event.bare_name || !event.used) continue;
    powers = powers && IsPowerOfTwo(event.used->value);
    highest = std::max(highest, event.used->value);
  }
  if (!powers || highest < kHighScale) {
    std::erase_if(log.events, [](const LogEvent& e) { return e.bare_name; });
  } else if (highest > 0) {
    log.notes.push_back(
        "a value called scale is assumed to be the loss scale, since it is a power of two of 2^13 "
        "or "
        "more");
  }
  const auto is_exact = [](const LogEvent& event) {
    return (event.used && !IsVague(*event.used)) || (event.next && !IsVague(*event.next));
  };
  if (std::ranges::any_of(log.events, is_exact)) return;
  for (LogEvent& event : log.events) event.used.reset(), event.next.reset();
}

void KeepOneVoice(LogEvents& log) {
  JoinDeepSpeedOverflows(log.events);
  DropOtherWordings(log.events);
  KeepOneRank(log);
  KeepOneOfEqual(log);
  DropCopiesBeforeGrowth(log);
  RequireOneEngine(log.events);
  JoinCounts(log.events);
  NoteNoScaler(log);
}

}  // namespace dlsim::sim
