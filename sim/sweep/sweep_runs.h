// SPDX-License-Identifier: Apache-2.0
// All runs of a sweep, in the two groups in which they advance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "sim/sweep/general_runs.h"
#include "sim/sweep/totals_run.h"

namespace dlsim {

// The runs that ask for totals, and what they share.
class TotalsRuns {
 public:
  explicit TotalsRuns(const ReplayOptions& options) : options_(options), totals_(options.checked) {}

  QuestionTable& table() { return table_; }
  StepTotals& totals() { return totals_; }
  size_t going() const { return going_; }

  void Add(ReplayRun run) {
    runs_.emplace_back(std::move(run), options_.on_fatal, table_);
    ++going_;
  }

  // Gathers the questions of the coming step.
  void Ask() {
    const auto remembers =
        table_.BeginStep() ? TotalsRun::Remembers::kNothing : TotalsRun::Remembers::kLastQuestion;
    for (TotalsRun& run : runs_) {
      if (!run.stopped()) run.Ask(remembers, table_);
    }
  }

  // Answers them by the totals that were set.
  void Answer() { table_.Answer(totals_); }

  void Advance(int64_t step) {
    input_.Merge(totals_.gradients());
    for (TotalsRun& run : runs_) {
      if (run.stopped()) continue;
      run.Advance(step, table_, input_);
      if (run.stopped()) --going_;
    }
  }

  SweepOutcome Outcome(size_t run) const { return runs_[run].Outcome(input_); }

 private:
  const ReplayOptions& options_;
  QuestionTable table_;
  StepTotals totals_;
  std::vector<TotalsRun> runs_;
  size_t going_ = 0;
  TensorStats input_;  // over all steps
};

// Whether the largest gradient of a step follows from its totals.
enum class TotalsSuffice : uint8_t { kForAbsmax, kNotForAbsmax };

// All runs of a sweep, each in its group.
struct SweepRuns {
  SweepRuns(std::vector<ReplayRun> runs, const ReplayOptions& options, TotalsSuffice suffice)
      : totals(options), general(options) {
    for (ReplayRun& run : runs) {
      const bool asks_for_totals =
          AsksForTotals(run, options) &&
          (suffice == TotalsSuffice::kForAbsmax || !run.scaler.uses_absmax());
      size_t& count = asks_for_totals ? totals_count : general_count;
      places.push_back({asks_for_totals, count++});
      asks_for_totals ? totals.Add(std::move(run)) : general.Add(std::move(run));
    }
  }

  std::vector<SweepOutcome> Outcomes() const {
    std::vector<SweepOutcome> outcomes;
    for (const Place& place : places) {
      outcomes.push_back(place.asks_for_totals ? totals.Outcome(place.index)
                                               : general.Outcome(place.index));
    }
    return outcomes;
  }

  struct Place {
    bool asks_for_totals;
    size_t index;
  };
  TotalsRuns totals;
  GeneralRuns general;
  size_t totals_count = 0, general_count = 0;
  std::vector<Place> places;
};

}  // namespace dlsim
