// SPDX-License-Identifier: Apache-2.0
#include "sim/studies/measure_reduction.h"

#include <algorithm>
#include <cmath>

namespace dlsim::sim {
namespace {

// Sums over ranks of each element, in float64.
struct ExactSums {
  std::vector<double> sums, magnitudes, squares;

  explicit ExactSums(const RankValues& values)
      : sums(values.elements), magnitudes(values.elements), squares(values.elements) {
    for (size_t r = 0; r < values.ranks; ++r) {
      for (size_t i = 0; i < values.elements; ++i) {
        const double value = static_cast<double>(values.Row(r)[i]);
        sums[i] += value;
        magnitudes[i] += std::fabs(value);
        squares[i] += value * value;
      }
    }
  }
};

// The variance of the mean over `ranks` ranks, which the recorded ones tell, summed over elements.
double NoiseOf(const RankValues& recorded, size_t ranks) {
  const double count = static_cast<double>(recorded.ranks);
  const ExactSums sums(recorded);
  double noise = 0;
  for (size_t i = 0; i < recorded.elements; ++i) {
    noise += std::max(0.0, sums.squares[i] - sums.sums[i] * sums.sums[i] / count) / (count - 1);
  }
  return noise / static_cast<double>(ranks);
}

// How far a result may be from the mean of terms, whatever the order: by rounding, and by what is
// lost below the smallest values of the format.
double CertainBound(const Reduction& reduction, size_t ranks, double magnitudes) {
  const double growth = reduction.LargestGrowth(ranks), count = static_cast<double>(ranks);
  const double before = static_cast<double>(reduction.Before(ranks));
  const double half = (reduction.wire ? MinPositive(*reduction.wire) : 0x1p-149) / 2;
  const double lost = growth * half * (1 + before) + half;
  return (growth - 1) * magnitudes / count + lost / static_cast<double>(reduction.scale);
}

bool SendTheSame(const Reduction& a, const Reduction& b) {
  return a.wire == b.wire && a.scale == b.scale && a.Before(kMaxRanks) == b.Before(kMaxRanks);
}

// The reductions of one tensor over one number of ranks.
class Measurement {
 public:
  Measurement(const RankSample& sample, const RankValues& values)
      : sample_(sample), values_(values), exact_(values) {}

  // Measures a reduction of what was sent in each of some orders, the first of which counts.
  void Measure(const Reduction& reduction, const RankValues& sent, const ExactSums& sent_sums,
               const std::vector<std::vector<size_t>>& orders, TensorReduction& result) const {
    std::vector<std::vector<float>> reduced;
    for (const std::vector<size_t>& order : orders) {
      reduced.push_back(Reduce(sent, order, sample_.places, reduction));
    }
    result.lost = result.overflowed = 0;
    SquareSums& sums = result.by_ranks.emplace_back();
    for (size_t i = 0; i < values_.elements; ++i) {
      double low = HUGE_VAL, high = 0;
      for (const std::vector<float>& one : reduced) {
        const double difference = std::fabs(ValueOf(one[i], reduction) - MeanOf(i));
        low = std::min(low, difference);
        high = std::max(high, std::isnan(difference) ? HUGE_VAL : difference);
      }
      if (!std::isfinite(high)) {
        ++result.overflowed;
        continue;
      }
      const double value = ValueOf(reduced.front()[i], reduction);
      const double error = value - MeanOf(i), additions = value - SentMean(reduction, sent_sums, i);
      const double bound = CertainBound(reduction, values_.ranks, exact_.magnitudes[i]);
      sums.reference += MeanOf(i) * MeanOf(i);
      sums.error += error * error;
      sums.additions += additions * additions;
      sums.low += low * low;
      sums.high += high * high;
      sums.certain += bound * bound;
      result.lost += std::fabs(error) > std::fabs(MeanOf(i)) / 2;
    }
  }

 private:
  static double ValueOf(float reduced, const Reduction& reduction) {
    return static_cast<double>(reduced) / static_cast<double>(reduction.scale);
  }
  double MeanOf(size_t i) const { return exact_.sums[i] / static_cast<double>(values_.ranks); }
  double SentMean(const Reduction& reduction, const ExactSums& sent, size_t i) const {
    const double after = static_cast<double>(reduction.After(values_.ranks));
    return sent.sums[i] / (after * static_cast<double>(reduction.scale));
  }

  const RankSample& sample_;
  const RankValues& values_;
  ExactSums exact_;
};

// The largest magnitudes on the way, before rounding. Of more ranks than were recorded each has a
// value that was recorded: together at most the largest one each, and on average as recorded.
void FindPeaks(const RankSample& sample, const Reduction& reduction, size_t ranks,
               TensorReduction& result) {
  const double scale = static_cast<double>(reduction.scale);
  const double before = static_cast<double>(reduction.Before(ranks));
  const double count = static_cast<double>(ranks);
  const double more = count / static_cast<double>(sample.values.ranks);
  const double alike = more > 1 ? 1 + (more - 1) * TrueShareOfMean(sample.values) : 1;
  const double sum = sample.max_sum * alike * scale / before;
  double magnitudes =
      (more > 1 ? sample.max_value * count : sample.max_magnitudes) * scale / before;
  if (reduction.algorithm == Algorithm::kAllToAll && more <= 1) magnitudes = sum;
  const bool sums_are_float32 = reduction.level && *reduction.level < 2;
  result.own_peak = sample.max_value * scale;
  result.sum_peak = sums_are_float32 ? 0 : sum;
  result.most_peak = std::max(result.own_peak, sums_are_float32 ? 0 : magnitudes);
}

}  // namespace

TensorAtStep MeasureReductions(const RankTensor& tensor, int64_t step,
                               const std::vector<Reduction>& reductions,
                               const ReductionOptions& options) {
  const RankSample sample = SampleOf(tensor, options.ranks, options.elements);
  TensorAtStep result = {step, tensor.name, tensor.elements, sample.at.size(), sample.nonfinite,
                         {}};
  result.reductions.resize(reductions.size());
  const std::vector<size_t> counts = RankCounts(options.ranks);
  if (sample.at.empty()) {
    for (TensorReduction& of : result.reductions) of.by_ranks.resize(counts.size());
    return result;
  }
  for (const size_t ranks : counts) {
    const bool last = ranks == options.ranks;
    const RankValues values = ValuesOfRanks(sample, ranks, tensor.name, step);
    const Measurement measurement(sample, values);
    std::vector<std::vector<size_t>> orders = OrdersOf(ranks);
    if (!last) orders.resize(1);
    std::vector<bool> done(reductions.size());
    for (size_t first = 0; first < reductions.size(); ++first) {
      if (done[first]) continue;
      const RankValues sent = Send(values, reductions[first]);
      const ExactSums sent_sums(sent);
      for (size_t r = first; r < reductions.size(); ++r) {
        if (done[r] || !SendTheSame(reductions[first], reductions[r])) continue;
        done[r] = true;
        measurement.Measure(reductions[r], sent, sent_sums, orders, result.reductions[r]);
        if (!last) continue;
        FindPeaks(sample, reductions[r], ranks, result.reductions[r]);
        result.reductions[r].by_ranks.back().noise = NoiseOf(sample.values, ranks);
      }
    }
  }
  return result;
}

}  // namespace dlsim::sim
