// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/log_averages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/explain/guided_diffusion.h"
#include "sim/explain/log_start.h"

namespace dlsim::sim {
namespace {

using Kind = LogEvent::Kind;

void NoteMeans(int64_t means, std::string_view over, LogEvents& log) {
  const bool one = means == 1;
  log.notes.push_back(fmt::format("{} of loss_scale {} over {}, and {} left out",
                                  one ? "one value" : fmt::format("{} values", means),
                                  one ? "is a mean" : "are means", over, one ? "is" : "are"));
}

// Versions of fairseq print the mean of the scale over the last updates: no power of two times the
// scales that its messages name. Where all are means, no line ties a scale to a number of updates.
void DropMeans(LogEvents& log) {
  const auto named = std::ranges::find_if(log.events, [](const LogEvent& event) {
    return event.stack == LogStack::kFairseq && event.kind == Kind::kOverflow && event.next;
  });
  if (named == log.events.end() || named->next->value <= 0) return;
  const double unit = named->next->value;
  int64_t means = 0, scales = 0;
  for (LogEvent& event : log.events) {
    if (event.kind != Kind::kUpdates || !event.next) continue;
    const double power = std::exp2(std::round(std::log2(event.next->value / unit)));
    const bool is_scale = event.next->Holds(power * unit);
    if (!is_scale) event.next.reset();
    ++(is_scale ? scales : means);
  }
  if (means == 0) return;
  if (scales == 0) {
    std::erase_if(log.events, [](const LogEvent& e) { return e.kind == Kind::kUpdates; });
  }
  NoteMeans(means, "updates", log);
}

// Where the scale changes between two lines, the mean is no power of two.
void DropMixedMeans(LogEvents& log) {
  const auto is_mixed = [](const LogEvent& event) {
    if (!event.mean || !event.used) return false;
    return !event.used->Holds(std::exp2(std::round(std::log2(event.used->value))));
  };
  const auto means = static_cast<int64_t>(std::erase_if(log.events, is_mixed));
  if (means > 0) NoteMeans(means, "steps with different scales", log);
}

// The scale after a step is the median of the steps around it: one of those that the lines from
// there on tell, until the window has passed, which takes a step for each line at least.
void WidenMedians(LogEvents& log) {
  bool any = false;
  for (auto event = log.events.begin(); event != log.events.end(); ++event) {
    if (event->median_of <= 1 || !event->next || !IsRecord(*event)) continue;
    any = true;
    int64_t lines = 0;
    for (auto later = event + 1; later != log.events.end() && lines < event->median_of; ++later) {
      if (!later->next || !IsRecord(*later)) continue;
      ++lines;
      event->next->low = std::min(event->next->low, later->next->value);
      event->next->high = std::max(event->next->high, later->next->value);
      if (*later->number >= *event->number + event->median_of) break;
    }
  }
  if (!any) return;
  log.notes.push_back(
      "loss_scale is a median over the last steps: the scale may have changed some steps earlier");
}

}  // namespace

void ReadAverages(LogEvents& log) {
  ReadGuidedMeans(log);
  DropMeans(log);
  DropMixedMeans(log);
  WidenMedians(log);
}

}  // namespace dlsim::sim
