// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/counted_stretch.h"

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace dlsim::sim {
namespace {

// Up to this number, alternatives are not compared with each other.
constexpr size_t kFewBranches = 4;

// More ways than this do not wait for others that come to the same state: they take memory.
constexpr size_t kMostWaiting = 10'000;

// Where the overflows of a stretch may lie among its steps.
struct Places {
  int64_t steps, overflows;
  LastStep last;

  bool MayBeClean(int64_t at, int64_t taken) const {
    const int64_t left = steps - at - 1;
    if (left == 0 && last == LastStep::kSkipped) return false;
    const int64_t room = left - (last == LastStep::kApplied && left > 0 ? 1 : 0);
    return overflows - taken <= room;
  }
  bool MayOverflow(int64_t at, int64_t taken) const {
    if (at < steps - 1) return LeaveChoice(taken);
    return last != LastStep::kApplied && taken < overflows;
  }
  // Whether one more may overflow before the last step.
  bool LeaveChoice(int64_t taken) const {
    return taken < overflows - (last == LastStep::kSkipped ? 1 : 0);
  }
};

// The ways through one stretch. While an overflow may still lie at several places, a way is taken
// step by step; the rest of the stretch, which leaves no choice, is taken once for all ways that
// come to the same state, at whatever step.
class CountedStretch {
 public:
  CountedStretch(const Stretch& stretch, Work& work)
      : stretch_(stretch),
        places_{*stretch.steps, static_cast<int64_t>(stretch.overflows.size()), stretch.last},
        work_(work) {}

  std::vector<Branch> Advance(std::vector<Branch> branches) {
    if (places_.overflows > places_.steps) return {};
    for (size_t i = 0; i < branches.size(); ++i) {
      branches[i].origin = i;
      if (places_.LeaveChoice(0)) {
        open_.push_back(std::move(branches[i]));
      } else {
        AddRest(branches[i], 0);
      }
    }
    for (int64_t at = 0; !open_.empty() && at < places_.steps && !work_.IsTooMuch(); ++at) {
      std::vector<Branch> before = std::exchange(open_, std::move(spare_));
      TakeStepOf(before, at);
      before.clear();
      spare_ = std::move(before);
      KeepFew(kMostBranches, open_, many_open_);
      if (waiting_ > kMostWaiting) TakeRests();
    }
    TakeRests();
    SortByWay(passed_);
    return std::move(passed_);
  }

 private:
  // A way that comes to a state, and the first step that it takes from there.
  struct Start {
    int64_t at;
    size_t origin;
    std::vector<int64_t> overflow_at;
    std::optional<size_t> noted;
  };
  // The steps that leave no choice: all but the last are clean.
  struct Rest {
    Branch branch;              // in the state from which they are taken
    std::vector<Start> starts;  // by their steps
  };

  static void SortByWay(std::vector<Branch>& branches) {
    std::ranges::sort(branches, [](const Branch& a, const Branch& b) {
      return std::tie(a.origin, a.way.overflow_at) < std::tie(b.origin, b.way.overflow_at);
    });
  }

  // Takes the step `at` of each branch in both ways that it may have. Of those that overflow few
  // differ: most policies begin to count again.
  void TakeStepOf(std::vector<Branch>& branches, int64_t at) {
    overflowed_.Clear();
    for (Branch& branch : branches) {
      if (at == places_.steps - 1 && !Fits(stretch_.used, branch.scaler.scale())) continue;
      const auto taken = static_cast<int64_t>(branch.way.overflow_at.size());
      const LoggedOverflow& logged = stretch_.overflows[static_cast<size_t>(taken)];
      if (places_.MayOverflow(at, taken) && MayTell(logged, branch)) {
        ++work_.done;
        trial_ = branch;
        if (TakeOverflow(logged, at, false, *trial_)) {
          if (!places_.LeaveChoice(taken + 1)) {
            AddRest(*trial_, at + 1);
          } else if (overflowed_.Add(*trial_)) {
            open_.push_back(*trial_);
          }
        }
      }
      ++work_.done;
      if (places_.MayBeClean(at, taken) && TakeStep(false, branch)) {
        open_.push_back(std::move(branch));
      }
    }
  }

  // Of branches that are alike at one step the first is kept.
  void AddRest(const Branch& branch, int64_t at) {
    WriteState(branch, state_);
    auto found = rests_.find(state_);
    if (found == rests_.end()) {
      found = rests_.emplace(state_, Rest{branch, {}}).first;
    } else if (found->second.starts.back().at == at) {
      return;
    }
    found->second.starts.push_back({at, branch.origin, branch.way.overflow_at, branch.noted});
    ++waiting_;
  }

  void TakeRests() {
    for (auto& [state, rest] : rests_) TakeRest(rest);
    rests_.clear();
    waiting_ = 0;
  }

  // One scaler walks for all: from the latest start on, and from there for the one before it.
  void TakeRest(Rest& rest) {
    const int64_t last = places_.steps - 1;
    int64_t walked = 0;
    for (auto start = rest.starts.rbegin(); start != rest.starts.rend(); ++start) {
      const int64_t clean = std::max<int64_t>(0, last - start->at);
      if (!TakeCleanUntil(clean, walked, rest.branch, work_)) return;
      walked = clean;
      trial_ = rest.branch;
      trial_->origin = start->origin;
      trial_->noted = start->noted;
      trial_->way.overflow_at = std::move(start->overflow_at);
      if (start->at <= last && !TakeLast(stretch_, *trial_)) continue;
      if (!Fits(stretch_.next, trial_->scaler.scale())) continue;
      passed_.push_back(*trial_);
      if (passed_.size() > many_passed_) SortByWay(passed_);
      KeepFew(2 * kMostBranches, passed_, many_passed_);
    }
  }

  // Twins are sought when the ways have become twice as many, or more than `most`, since looking
  // takes longer than a step.
  void KeepFew(size_t most, std::vector<Branch>& branches, size_t& many) {
    if (branches.size() <= many) return;
    RemoveTwins(branches);
    many = std::clamp(2 * branches.size(), kFewBranches, most);
    work_.given_up |= branches.size() > kMostBranches;
  }

  const Stretch& stretch_;
  const Places places_;
  Work& work_;
  std::vector<Branch> open_, spare_, passed_;  // open_: an overflow comes before a clean step
  size_t many_open_ = kFewBranches, many_passed_ = kFewBranches;
  std::optional<Branch> trial_;
  DifferentBranches overflowed_;
  std::unordered_map<std::string, Rest> rests_;  // by the state
  size_t waiting_ = 0;                           // starts of all
  std::string state_;
};

}  // namespace

bool TakeCleanUntil(int64_t end, int64_t at, Branch& branch, Work& work) {
  while (at < end && !work.IsTooMuch()) {
    const CleanSteps taken =
        TakeCleanSteps(std::min(end - at, work.PlainRoom()), CleanUntil::kEnd, branch);
    work.AddPlain(at, taken.count);
    if (!taken.fits) return false;
    at += taken.count;
  }
  return !work.IsTooMuch();
}

bool TakeLast(const Stretch& stretch, Branch& branch) {
  if (!Fits(stretch.used, branch.scaler.scale())) return false;
  const size_t taken = branch.way.overflow_at.size();
  if (taken == stretch.overflows.size()) return TakeStep(false, branch);
  return TakeOverflow(stretch.overflows[taken], *stretch.steps - 1, false, branch);
}

std::vector<Branch> AdvanceCounted(const Stretch& stretch, std::vector<Branch> branches,
                                   Work& work) {
  return CountedStretch(stretch, work).Advance(std::move(branches));
}

}  // namespace dlsim::sim
