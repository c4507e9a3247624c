// SPDX-License-Identifier: Apache-2.0
#include "sim/studies/reduction_study.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/studies/measure_reduction.h"
#include "src/base/parallel.h"

namespace dlsim::sim {
namespace {

// The slope of a line through (log ranks, log error), by least squares.
std::optional<double> ExponentOf(const std::vector<size_t>& ranks,
                                 const std::vector<double>& errors) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!(errors[i] > 0)) continue;
    const double log_ranks = std::log(static_cast<double>(ranks[i])),
                 log_error = std::log(errors[i]);
    n += 1;
    x += log_ranks;
    y += log_error;
    xx += log_ranks * log_ranks;
    xy += log_ranks * log_error;
  }
  if (n < 3) return std::nullopt;
  return (n * xy - x * y) / (n * xx - x * x);
}

OverflowIn OverflowOf(double limit, const TensorReduction& peaks, double growth) {
  if (peaks.most_peak * growth < limit) return OverflowIn::kNoOrder;
  const double sum = peaks.sum_peak - (growth - 1) * peaks.most_peak;  // rounding may help
  return std::max(peaks.own_peak, sum) < limit ? OverflowIn::kSomeOrders : OverflowIn::kEveryOrder;
}

double LimitOf(const Reduction& reduction) {
  return reduction.wire ? OverflowThreshold(*reduction.wire) : 0x1.ffffffp127;
}

class Study {
 public:
  Study(const std::vector<Reduction>& reductions, const ReductionOptions& options)
      : counts_(RankCounts(options.ranks)), totals_(reductions.size()) {
    study_.options = options;
    for (const Reduction& reduction : reductions) {
      ReductionResult& result = study_.reductions.emplace_back();
      result.reduction = reduction;
      result.errors.resize(counts_.size());
      result.additions.resize(counts_.size());
      result.safe_scale = HUGE_VAL;
    }
  }

  void Add(const std::vector<TensorAtStep>& tensors) {
    ++groups_;
    for (size_t r = 0; r < totals_.size(); ++r) AddGroup(tensors, r);
    for (const TensorAtStep& tensor : tensors) AddTensor(tensor);
  }

  ReductionStudy Finish(const RankGroups& groups) {
    study_.groups = groups;
    const double count = static_cast<double>(std::max<uint64_t>(groups_, 1));
    const auto root = [&](double& sum) { sum = std::sqrt(sum / count); };
    root(study_.noise);
    for (size_t r = 0; r < totals_.size(); ++r) {
      ReductionResult& result = study_.reductions[r];
      for (double* sum : {&result.low, &result.high, &result.certain}) root(*sum);
      std::ranges::for_each(result.errors, root);
      std::ranges::for_each(result.additions, root);
      result.exponent = ExponentOf(counts_, result.additions);
      if (totals_[r].elements == 0) continue;
      result.lost /= totals_[r].elements;
      result.overflowed /= totals_[r].elements;
    }
    return std::move(study_);
  }

 private:
  struct Totals {
    double elements = 0;
  };

  static double WeightOf(const TensorAtStep& tensor) {
    if (tensor.sampled == 0) return 0;
    return static_cast<double>(tensor.elements) / static_cast<double>(tensor.sampled);
  }

  // The whole gradient of a group: tensors weigh as much as they have elements.
  void AddGroup(const std::vector<TensorAtStep>& tensors, size_t r) {
    std::vector<SquareSums> sums(counts_.size());
    ReductionResult& result = study_.reductions[r];
    for (const TensorAtStep& tensor : tensors) {
      const TensorReduction& of = tensor.reductions[r];
      const double weight = WeightOf(tensor);
      for (size_t c = 0; c < counts_.size(); ++c) sums[c].Add(of.by_ranks[c], weight);
      result.lost += weight * static_cast<double>(of.lost);
      result.overflowed += weight * static_cast<double>(of.overflowed);
      if (tensor.sampled > 0) totals_[r].elements += static_cast<double>(tensor.elements);
      AddPeaks(of, result);
    }
    for (size_t c = 0; c < counts_.size(); ++c) {
      result.errors[c] += sums[c].Relative(&SquareSums::error);
      result.additions[c] += sums[c].Relative(&SquareSums::additions);
    }
    result.low += sums.back().Relative(&SquareSums::low);
    result.high += sums.back().Relative(&SquareSums::high);
    result.certain += sums.back().Relative(&SquareSums::certain);
    if (r == 0) study_.noise += sums.back().Relative(&SquareSums::noise);
  }

  void AddPeaks(const TensorReduction& of, ReductionResult& result) {
    const Reduction& reduction = result.reduction;
    const double limit = LimitOf(reduction);
    const double growth = reduction.LargestGrowth(study_.options.ranks);
    result.overflow = std::max(result.overflow, OverflowOf(limit, of, growth));
    if (of.most_peak == 0) return;
    const double scale = static_cast<double>(reduction.scale);
    const double largest = limit / (of.most_peak * growth) * scale;
    double power = std::exp2(std::min(std::floor(std::log2(largest)), 127.0));
    if (power >= largest) power /= 2;
    result.safe_scale = std::min(result.safe_scale, power);
  }

  void AddTensor(const TensorAtStep& tensor) {
    study_.nonfinite += tensor.nonfinite;
    study_.sampled += tensor.sampled;
    if (tensor.sampled == 0) return;
    const auto [entry, is_new] = index_.try_emplace(tensor.name, study_.tensors.size());
    if (is_new) {
      study_.tensors.push_back({tensor.name, std::vector<TensorError>(totals_.size())});
    }
    for (size_t r = 0; r < totals_.size(); ++r) {
      TensorError& error = study_.tensors[entry->second].reductions[r];
      const SquareSums& sums = tensor.reductions[r].by_ranks.back();
      const double squares = sums.Relative(&SquareSums::error);
      error.squares += squares;
      error.lost += tensor.reductions[r].lost;
      if (error.steps++ > 0 && !(squares > error.worst * error.worst)) continue;
      error.worst = std::sqrt(squares);
      error.worst_step = tensor.step;
    }
  }

  std::vector<size_t> counts_;
  std::vector<Totals> totals_;
  uint64_t groups_ = 0;
  ReductionStudy study_;
  std::map<std::string, size_t> index_;
};

}  // namespace

void SquareSums::Add(const SquareSums& other, double weight) {
  for (double SquareSums::*sum :
       {&SquareSums::reference, &SquareSums::error, &SquareSums::additions, &SquareSums::low,
        &SquareSums::high, &SquareSums::certain, &SquareSums::noise}) {
    this->*sum += weight * (other.*sum);
  }
}

std::vector<size_t> RankCounts(size_t ranks) {
  std::vector<size_t> counts;
  for (size_t count = 2; count < ranks; count *= 2) counts.push_back(count);
  counts.push_back(ranks);
  return counts;
}

ReductionStudy RunReductionStudy(const TraceReader& trace, const std::vector<Reduction>& reductions,
                                 const ReductionOptions& options,
                                 const std::function<void(const TensorAtStep&)>& on_tensor,
                                 const std::function<void(size_t)>& on_step) {
  Study study(reductions, options);
  const RankGroups groups = VisitRankGroups(
      trace,
      [&](const RankGroup& group) {
        std::vector<TensorAtStep> tensors(group.tensors.size());
        ParallelFor(tensors.size(), [&](size_t t) {
          tensors[t] = MeasureReductions(group.tensors[t], group.step, reductions, options);
        });
        study.Add(tensors);
        for (const TensorAtStep& tensor : tensors) on_tensor(tensor);
      },
      on_step);
  return study.Finish(groups);
}

}  // namespace dlsim::sim
