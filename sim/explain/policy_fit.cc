// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/policy_fit.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "sim/base/caller.h"
#include "sim/explain/branch.h"
#include "sim/explain/counted_stretch.h"
#include "sim/explain/fit_work.h"

namespace dlsim::sim {
namespace {

// Between two messages no scale stands for more clean steps than this, and no more than these grow.
constexpr int64_t kMostUnchangedSteps = 25000;
constexpr int64_t kMostCleanSteps = 200000;

// Of overflows that pass without a word before one that is stated.
constexpr int64_t kMostHiddenOverflows = 7;

// Passes a stretch in which each step overflows; false if it does not fit.
bool AdvanceOverflows(const Stretch& stretch, Branch& branch, Work& work) {
  for (int64_t at = 0; at < *stretch.steps; ++at) {
    if (at % kPlainSteps == 0) ++work.done;
    if (work.IsTooMuch()) return false;
    const bool is_last = at == *stretch.steps - 1;
    if (is_last && !Fits(stretch.used, branch.scaler.scale())) return false;
    const LoggedOverflow& logged = stretch.overflows[static_cast<size_t>(at)];
    if (!TakeOverflow(logged, at, false, branch)) return false;
  }
  return Fits(stretch.next, branch.scaler.scale());
}

// The same where none does.
bool AdvanceClean(const Stretch& stretch, Branch& branch, Work& work) {
  const int64_t last = *stretch.steps - 1;
  if (!TakeCleanUntil(last, 0, branch, work)) return false;
  work.AddPlain(last, 1);
  if (last >= 0 && !TakeLast(stretch, branch)) return false;
  return Fits(stretch.next, branch.scaler.scale());
}

// True if the scale is too high for a message already: clean steps only raise it. `trial` is memory
// for another branch.
bool IsBeyond(const LoggedOverflow& logged, double scale, const Branch& branch,
              std::optional<Branch>& trial) {
  if (logged.used) return scale > logged.used->high;
  if (!logged.next) return false;
  trial = branch;
  for (int64_t i = 0; i <= kMostHiddenOverflows && !trial->ended; ++i) {
    TakeStep(true, *trial);
    if (trial->scaler.scale() <= logged.next->high) return false;
  }
  return true;
}

// Takes the overflow of a message, or several where only the last of them is stated; false if it
// does not fit.
bool TakeStated(const Stretch& stretch, Branch& branch) {
  const LoggedOverflow& logged = stretch.overflows.front();
  const int64_t most = stretch.hides_overflows ? kMostHiddenOverflows : 0;
  for (int64_t hidden = 0; hidden <= most; ++hidden) {
    if (TakeOverflow(logged, branch.way.clean + hidden, stretch.announced, branch)) return true;
    if (branch.ended) break;
  }
  return false;
}

// Takes clean steps of a branch. Where scales are announced, the one that would be printed is that
// of a scaler one step ahead.
class CleanWalk {
 public:
  CleanWalk(bool announced, Branch& branch) : branch_(branch) {
    if (!announced) return;
    ahead_ = branch.scaler;
    ahead_->Next({});
  }

  double PrintedScale() const { return ahead_ ? ahead_->scale() : branch_.scaler.scale(); }

  // Takes up to `most`, up to the first that changes the printed scale.
  CleanSteps TakeToChange(int64_t most) {
    if (!ahead_) return TakeCleanSteps(most, CleanUntil::kChange, branch_);
    const int64_t count = ahead_->NextClean(most, CleanUntil::kChange).count;
    return TakeCleanSteps(count, CleanUntil::kEnd, branch_);
  }

 private:
  Branch& branch_;
  std::optional<LossScaler> ahead_;
};

// Returns the ways on if the number of steps is not known: takes clean steps until the message
// fits. It may fit after any number of them at the same scale; only the two smallest numbers are
// followed.
std::vector<Branch> AdvanceUncounted(const Stretch& stretch, Branch branch, Work& work) {
  std::vector<Branch> found;
  std::optional<Branch> trial;
  const bool grows = stretch.overflows.empty();
  int64_t since_change = 0;
  CleanWalk walk(stretch.announced, branch);
  double scale = walk.PrintedScale();
  for (int64_t clean = 0; clean < kMostCleanSteps && found.size() < 2; ++clean) {
    work.AddPlain(clean, 1);
    if (work.IsTooMuch()) break;
    branch.way.clean = clean;
    if (since_change == kMostUnchangedSteps) break;
    if (!grows && since_change < 2) {
      if (since_change == 0) work.AddTrial();
      const LoggedOverflow& logged = stretch.overflows.front();
      const double used = stretch.announced ? branch.scaler.scale() : scale;
      if (IsBeyond(logged, used, branch, trial)) break;
      if (Fits(logged.used, used)) {
        trial = branch;
        if (TakeStated(stretch, *trial)) found.push_back(*trial);
      }
    }
    const bool at_once = grows || since_change >= 2;
    const int64_t unchanged = std::min(kMostUnchangedSteps - since_change, kMostCleanSteps - clean);
    const CleanSteps taken = walk.TakeToChange(at_once ? unchanged : 1);
    if (!taken.fits) break;
    work.AddPlain(clean + 1, taken.count - 1);
    if (work.IsTooMuch()) break;
    clean += taken.count - 1;
    const double before = scale;
    scale = walk.PrintedScale();
    const bool changed = scale != before;
    since_change = changed ? 0 : since_change + taken.count;
    if (!grows || !changed) continue;
    branch.way.clean = clean + 1;
    if (Fits(stretch.used, before) && Fits(stretch.next, scale)) {
      found.push_back(branch);
    }
    break;
  }
  return found;
}

std::vector<Branch> Advance(const Stretch& stretch, std::vector<Branch> branches, Work& work) {
  std::vector<Branch> next;
  const auto overflows = static_cast<int64_t>(stretch.overflows.size());
  if (!stretch.steps) {
    for (Branch& branch : branches) {
      std::ranges::move(AdvanceUncounted(stretch, std::move(branch), work),
                        std::back_inserter(next));
    }
  } else if (overflows > 0 && overflows != *stretch.steps) {
    next = AdvanceCounted(stretch, std::move(branches), work);
  } else {
    const auto advance = overflows == 0 ? AdvanceClean : AdvanceOverflows;
    for (Branch& branch : branches) {
      if (advance(stretch, branch, work)) next.push_back(std::move(branch));
    }
  }
  if (stretch.steps != 0) RemoveTwins(next);
  return next;
}

// Appends the steps of one stretch, and moves the scaler through it.
void AppendSteps(const Stretch& stretch, const Way& way, LossScaler& scaler, int64_t& clean,
                 std::vector<LoggedStep>& steps) {
  const int64_t count =
      stretch.steps.value_or(way.clean + static_cast<int64_t>(way.overflow_at.size()));
  const auto take_clean_until = [&](int64_t at, int64_t end) {
    if (stretch.steps) {
      for (; at < end; ++at) {
        steps.push_back({scaler.scale(), false, stretch.line, std::exchange(clean, 0)});
        scaler.Next(InputOf(false));
      }
    } else {
      clean += end - at;
      while (at < end) at += scaler.NextClean(end - at, CleanUntil::kEnd).count;
    }
  };
  int64_t at = 0;
  for (const int64_t overflow_at : way.overflow_at) {
    take_clean_until(at, overflow_at);
    steps.push_back({scaler.scale(), true, stretch.line, std::exchange(clean, 0)});
    scaler.Next(InputOf(true));
    at = overflow_at + 1;
  }
  take_clean_until(at, count);
}

}  // namespace

uint64_t WorkOfOneWay(const ScalePath& path) {
  Work work;
  for (const Stretch& stretch : path.stretches) {
    const int64_t steps = std::max<int64_t>(stretch.steps.value_or(0), 0);
    // A longer stretch is given up before its end.
    const bool branches =
        stretch.overflows.size() > 1 && static_cast<int64_t>(stretch.overflows.size()) != steps;
    work.AddStretch(1);
    work.AddPlain(0, branches ? std::min<int64_t>(steps, kMostBranches) : steps);
  }
  return work.done;
}

std::vector<LoggedStep> StepsOf(const LossScaler& scaler, const ScalePath& path,
                                const PolicyFit& fit) {
  std::vector<const NotedWay*> noted;  // the last one first
  for (std::optional<size_t> at = fit.last; at; at = fit.ways[*at].before) {
    noted.push_back(&fit.ways[*at]);
  }
  const Way only_counted_steps;
  std::vector<LoggedStep> steps;
  LossScaler walker = scaler;
  int64_t clean = 0;
  for (size_t i = 0; i < fit.explained; ++i) {
    const bool has_note = !noted.empty() && noted.back()->stretch == i;
    const Way& way = has_note ? noted.back()->way : only_counted_steps;
    AppendSteps(path.stretches[i], way, walker, clean, steps);
    if (has_note) noted.pop_back();
  }
  return steps;
}

PolicyFit FitPolicy(const LossScaler& scaler, const ScalePath& path, uint64_t most_work) {
  PolicyFit fit;
  std::vector<Branch> branches;
  branches.push_back({.scaler = scaler});
  Work work = {.most = most_work};
  const auto keep_ends = [&] {
    fit.branches = branches.size();
    fit.end = branches.front().scaler;
    fit.last = branches.front().noted;
  };
  keep_ends();
  for (const Stretch& stretch : path.stretches) {
    CurrentCaller().CheckCanceled();
    branches = Advance(stretch, std::move(branches), work);
    work.AddStretch(branches.size());
    fit.undecided = branches.size() > kMostBranches || work.IsTooMuch();
    if (branches.empty() || fit.undecided) break;
    for (Branch& branch : branches) {
      if (branch.way.HasOnlyCountedSteps()) continue;
      fit.ways.push_back({fit.explained, branch.noted, std::exchange(branch.way, {})});
      branch.noted = fit.ways.size() - 1;
    }
    ++fit.explained;
    keep_ends();
  }
  fit.work = work.done;
  return fit;
}

}  // namespace dlsim::sim
