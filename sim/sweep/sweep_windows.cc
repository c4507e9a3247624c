// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/sweep_windows.h"

#include <algorithm>

namespace dlsim::sim {

SweepWindows::SweepWindows(std::span<const ReplayRun> runs, const ReplayOptions& options,
                           const GradientSource& source) {
  for (const ReplayRun& run : runs) places_.push_back(Place(run));
  for (const Group& group : groups_) {
    searches_.emplace_back(group.formats, group.conversion, options).FindNoise(source);
  }
}

size_t SweepWindows::Place(const ReplayRun& run) {
  Conversion conversion = run.conversion;
  conversion.format = {};
  auto group = std::ranges::find(groups_, conversion, &Group::conversion);
  if (group == groups_.end()) group = groups_.insert(group, {conversion, {}, {}});
  const auto found = std::ranges::find(group->formats, run.format, &NamedFormat::name);
  const auto index = static_cast<size_t>(found - group->formats.begin());
  if (found == group->formats.end()) {
    group->formats.push_back({run.format, run.conversion.format});
    group->places.push_back(latest_.size());
    latest_.emplace_back();
  }
  return group->places[index];
}

void SweepWindows::Ask(const GradientStep& step, StepQuestions& questions) {
  for (WindowConsumer& search : searches_) search.Ask(step, questions);
}

void SweepWindows::Advance(size_t i, const GradientStep& step, const MeasuredStep& measured) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    searches_[g].Advance(i, step, measured);
    const std::vector<size_t>& places = groups_[g].places;
    for (size_t f = 0; f < places.size(); ++f) latest_[places[f]] = &searches_[g].Latest(f);
  }
}

std::vector<SweepAdvice> SweepWindows::Verdicts(const GradientSource& source,
                                                std::span<const std::string> formats,
                                                const std::string& tensors) {
  std::vector<SweepAdvice> verdicts;
  for (size_t g = 0; g < groups_.size(); ++g) {
    std::vector<FormatWindows> found = searches_[g].Take(source);
    std::ranges::stable_sort(found, {}, [&](const FormatWindows& windows) {
      return std::ranges::find(formats, windows.format.name) - formats.begin();
    });
    verdicts.push_back({groups_[g].conversion.rounding, Advise(found, tensors)});
  }
  return verdicts;
}

}  // namespace dlsim::sim
