// SPDX-License-Identifier: Apache-2.0
// The marks that policies leave on a path.
#include <algorithm>
#include <cmath>
#include <optional>

#include "sim/explain/candidates.h"

namespace dlsim::sim {
namespace {

template <class T>
void AddOnce(T value, std::vector<T>& values) {
  if (std::ranges::find(values, value) == values.end()) values.push_back(value);
}

class MarkFinder {
 public:
  explicit MarkFinder(const ScalePath& path) : path_(path) {}

  PathMarks Find() {
    FindFirstScales();
    for (const Stretch& stretch : path_.stretches) Add(stretch);
    marks_.longest_clean = std::max(marks_.longest_clean, since_least_);
    FindLimits();
    if (excess_ < 2 && excess_ > tolerated_) {
      for (const double round : {0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5}) {
        if (round > tolerated_ / 2 && round < excess_ * 2) AddOnce(round, marks_.tolerances);
      }
      AddOnce(tolerated_, marks_.tolerances);
      AddOnce((tolerated_ + excess_) / 2, marks_.tolerances);
    } else if (tolerated_ > 0) {
      AddOnce(tolerated_, marks_.tolerances);
    }
    return std::move(marks_);
  }

 private:
  // The scale that the first step used, or those that its fall may have come from.
  void FindFirstScales() {
    int falls = 0;  // overflows before the first scale that is known
    for (const Stretch& stretch : path_.stretches) {
      const bool one = stretch.steps.value_or(1) <= 1;
      if (one && stretch.used) return SetFirst(stretch.used->value, falls);
      for (const LoggedOverflow& overflow : stretch.overflows) {
        if (overflow.used) return SetFirst(overflow.used->value, falls);
        falls = std::min(falls + 1, 64);
        if (overflow.next) return SetFirst(overflow.next->value, falls);
      }
      const auto& known = stretch.next ? stretch.next : stretch.used;
      if (known) return SetFirst(known->value, falls);
    }
  }

  void SetFirst(double known, int falls) {
    for (int i = falls; i >= 0; --i) marks_.first_scales.push_back(std::ldexp(known, i));
    scale_ = marks_.first_scales.front();
    See(scale_);
  }

  void FindLimits() {
    marks_.stated_interval = path_.stated_interval;
    for (const GrowthDistance& distance : marks_.distances) {
      marks_.stands_at_highest |= marks_.longest_clean > distance.most;
    }
    marks_.stands_at_lowest = standing_at_ > 0 && standing_at_ == marks_.lowest;
    // One overflow that leaves a scale above 1 is hysteresis: a floor is seldom so high.
    if (marks_.stands_at_lowest && !fallen_ && overflows_before_fall_ == 1 && standing_at_ > 1) {
      marks_.stands_at_lowest = false;
      marks_.first_fall = 2;
    }
  }

  void See(std::optional<double> scale) {
    if (!scale) return;
    marks_.lowest = marks_.lowest == 0 ? *scale : std::min(marks_.lowest, *scale);
    marks_.highest = std::max(marks_.highest, *scale);
  }

  void Add(const Stretch& stretch) {
    const auto overflows = static_cast<int64_t>(stretch.overflows.size());
    const int64_t steps = stretch.steps.value_or(overflows);
    if (stretch.steps && overflows > 0) AddGap(stretch.overflows.front(), steps - overflows);
    for (const LoggedOverflow& overflow : stretch.overflows) AddOverflow(overflow);
    steps_ += steps;
    std::optional<double> next;
    if (stretch.next) next = stretch.next->value;
    if (!next && overflows > 0 && stretch.overflows.back().next) {
      next = stretch.overflows.back().next->value;
    }
    if (stretch.used) See(stretch.used->value);
    See(next);
    if (next && scale_ && *next > *scale_) AddRise(*next / *scale_, steps);
    const bool falls = next && scale_ && *next < *scale_;
    if (falls && overflows <= 1) AddOnce(*next / *scale_, marks_.falls);
    if (overflows > 0) AddShare(falls || fell_);
    if (overflows > 0) {
      since_least_ = 0;
      since_most_ = steps - overflows;
    } else if (!(next && scale_ && *next > *scale_)) {
      since_least_ += steps;
      since_most_ += steps;
    }
    marks_.longest_clean = std::max(marks_.longest_clean, since_least_);
    if (next) scale_ = next;
  }

  // Where only overflows show the scale: how often it has grown since the one before.
  void AddGap(const LoggedOverflow& overflow, int64_t more_clean_steps) {
    if (!overflow.used || !scale_) return;
    if (overflow.used->value == *scale_) {
      marks_.longest_ungrown = std::max(marks_.longest_ungrown, since_least_);
    }
    if (!(overflow.used->value > *scale_)) return;
    AddOnce(2.0, marks_.rises);
    const double doublings = std::round(std::log2(overflow.used->value / *scale_));
    const auto growths = static_cast<int64_t>(std::clamp(doublings, 1.0, 2000.0));
    marks_.distances.push_back(
        {since_least_ / (growths + 1) + 1, (since_most_ + more_clean_steps) / growths});
  }

  void AddOverflow(const LoggedOverflow& overflow) {
    fell_ = false;
    if (!fallen_) ++overflows_before_fall_;
    ++overflows_;
    if (overflow.used) See(overflow.used->value);
    const std::optional<double> used = overflow.used ? std::optional(overflow.used->value) : scale_;
    if (!overflow.next || !used) return;
    if (overflow.next->value < *used) {
      AddOnce(overflow.next->value / *used, marks_.falls);
      if (!fallen_) marks_.first_fall = overflows_before_fall_;
      fallen_ = fell_ = true;
    }
    scale_ = overflow.next->value;
  }

  void AddRise(double ratio, int64_t steps) {
    AddOnce(ratio, marks_.rises);
    if (steps > 0) marks_.distances.push_back({since_least_ + 1, since_most_ + steps});
    since_least_ = 0;
    since_most_ = std::max<int64_t>(steps - 1, 0);
    steps_ = overflows_ = 0;
  }

  // Policies with a tolerance compare the share of overflows since the last change.
  void AddShare(bool falls) {
    if (!fallen_ && falls) {
      marks_.first_fall = std::max<int64_t>(overflows_before_fall_, 1);
      fallen_ = true;
    }
    const double share =
        static_cast<double>(overflows_) / static_cast<double>(std::max<int64_t>(steps_, 1));
    if (falls) {
      excess_ = std::min(excess_, share);
      steps_ = overflows_ = 0;
    } else {
      tolerated_ = std::max(tolerated_, share);
      if (scale_) standing_at_ = *scale_;
    }
  }

  const ScalePath& path_;
  PathMarks marks_;
  std::optional<double> scale_;
  int64_t since_least_ = 0, since_most_ = 0;  // clean steps since the last change
  int64_t steps_ = 0, overflows_ = 0;         // since the last change
  int64_t overflows_before_fall_ = 0;
  double standing_at_ = 0;              // where an overflow did not lower the scale
  bool fallen_ = false, fell_ = false;  // ever, and at the last overflow
  double tolerated_ = 0, excess_ = 2;
};

}  // namespace

PathMarks FindMarks(const ScalePath& path) { return MarkFinder(path).Find(); }

}  // namespace dlsim::sim
