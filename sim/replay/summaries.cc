// SPDX-License-Identifier: Apache-2.0
// What Cerebras' TensorFlow trainer logs of each gradient: sparsity, denormals, norm and a
// histogram of magnitudes. Definitions: Cerebras Model Zoo, modelzoo/common/tf/Trainer.py,
// log_training_summaries; docs/results.md says where dlsim is more exact.
#include "sim/replay/results.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <ranges>
#include <string>
#include <vector>

#include "dlsim/codec.h"
#include "dlsim/table.h"
#include "dlsim/trace.h"
#include "sim/base/caller.h"
#include "sim/base/rows.h"
#include "sim/base/shared_rows.h"
#include "sim/replay/step_sources.h"
#include "src/base/parallel.h"

namespace dlsim::sim {
namespace {

// The upper limits of the buckets of TensorFlow's default histogram: 0 and plus and minus
// 1e-12 * 1.1^k below 1e20, and the largest float64 (tensorflow/core/lib/histogram/histogram.cc).
std::vector<double> BucketLimits() {
  std::vector<double> limits = {0.0};
  for (double limit = 1e-12; limit < 1e20; limit *= 1.1) limits.push_back(limit);
  limits.push_back(std::numeric_limits<double>::max());
  for (size_t i = limits.size() - 1; i > 0; --i) limits.push_back(-limits[i]);
  std::ranges::sort(limits);
  return limits;
}

// The upper limit of the bucket of log2(|x| + 2^-50), as the trainer takes the logarithm: bucket i
// holds what lies from limit i - 1 to below limit i.
double LimitOf(std::span<const double> limits, float magnitude) {
  return *std::ranges::upper_bound(limits, std::log2(double{magnitude + 0x1p-50f}));
}

// Counts the nonzero finite values of a tensor between the magnitudes at which a figure changes.
class MagnitudeBins {
 public:
  MagnitudeBins(std::span<const double> limits, float min_normal) {
    lows_.push_back(std::bit_cast<uint32_t>(min_normal));
    for (int exponent = -149; exponent < 128; ++exponent) {
      lows_.push_back(std::bit_cast<uint32_t>(std::ldexp(1.0f, exponent)));
    }
    for (const double limit : limits) {
      lows_.push_back(*std::ranges::partition_point(
          std::views::iota(1u, codec::kInfinityBits), [&](uint32_t magnitude) {
            return LimitOf(limits, std::bit_cast<float>(magnitude)) <= limit;
          }));
    }
    std::erase_if(lows_, [](uint32_t low) { return low == 0 || low >= codec::kInfinityBits; });
    std::ranges::sort(lows_);
    lows_.erase(std::ranges::unique(lows_).begin(), lows_.end());
    for (size_t group = 0; group < first_.size(); ++group) {
      const auto above =
          std::ranges::upper_bound(lows_, static_cast<uint32_t>(group) << kGroupBits);
      first_[group] = static_cast<size_t>(std::max<ptrdiff_t>(above - lows_.begin() - 1, 0));
    }
  }

  size_t size() const { return lows_.size(); }

  // The smallest magnitude that belongs to a bin.
  float low(size_t bin) const { return std::bit_cast<float>(lows_[bin]); }

  void Add(std::span<const float> values, std::vector<uint64_t>& counts) const {
    for (const float value : values) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(value) & ~codec::kSignBit;
      if (magnitude == 0 || magnitude >= codec::kInfinityBits) continue;
      size_t bin = first_[magnitude >> kGroupBits];
      while (bin + 1 < lows_.size() && lows_[bin + 1] <= magnitude) ++bin;
      ++counts[bin];
    }
  }

 private:
  static constexpr int kGroupBits = 16;

  std::vector<uint32_t> lows_;  // bits, ascending
  // By the upper bits of a magnitude: the bin of the least that has them.
  std::vector<size_t> first_ = std::vector<size_t>(codec::kInfinityBits >> kGroupBits);
};

// A tensor of a recording.
struct TensorSummary {
  int64_t step = 0;
  std::optional<int64_t> micro = {};
  std::string tensor = {};
  Role role = Role::kGrad;
  TensorTable table = {};
  uint64_t denormals = 0;
  std::map<int, uint64_t> exponents = {};   // floor(log2(magnitude)) of nonzero finite values
  std::map<double, uint64_t> buckets = {};  // of finite values, by upper limit

  double norm() const {
    return table.nan > 0   ? std::numeric_limits<double>::quiet_NaN()
           : table.inf > 0 ? std::numeric_limits<double>::infinity()
                           : std::sqrt(table.sum_of_squares);
  }
  double Share(uint64_t count) const {
    return static_cast<double>(count) / std::fmax(1, static_cast<double>(table.elements));
  }
};

inline void Rows(const TensorSummary& of, RowSink& row) {
  row("step", of.step, "recorded number");
  row("micro", of.micro, "number of the micro-step; null without micro-steps");
  row("tensor", of.tensor, "as recorded");
  row("role", of.role, "`grad`, `act_grad`, `act` or `value`");
  row("norm", of.norm(),
      "L2 norm, in float64; infinite or NaN if a value is. In TensorBoard "
      "`norm_kernel_grads/NAME`");
  row("elements", of.table.elements, "values");
  row("zeros", of.table.zeros, "zeros, of both signs");
  row("denormals", of.denormals, "values with 0 < |x| < `denormal_below`");
  row("nan", of.table.nan, "values that are NaN");
  row("inf", of.table.inf, "infinite values");
  row("sparsity", of.Share(of.table.zeros),
      "zeros as a share of the elements; `sparsity_kernel_grads/NAME`");
  row("denormal_fraction", of.Share(of.denormals),
      "the same of denormals; `denormal_kernel_grads/NAME`");
  row("histogram", of.exponents,
      "pairs of an exponent e and how many nonzero finite values have 2^e <= |x| < "
      "2^(e+1)");
  row("tensorflow_histogram", of.buckets,
      "pairs of a bucket's upper limit and its count: TensorFlow's buckets of log2(|x| + "
      "2^-50) for finite x; `kernel_grads/NAME`");
}

// Passes on the tensors of a recording, in order.
void Summarize(const TraceStep& step, const Recording& recording, float min_normal,
               std::span<const double> limits, const MagnitudeBins& bins,
               const std::function<void(const TensorSummary&)>& take) {
  const std::vector<TraceTensor>& tensors = recording.tensors;
  std::vector<TensorSummary> summaries(tensors.size());
  ParallelFor(tensors.size(), [&](size_t t) {
    TensorSummary& summary = summaries[t];
    summary.step = step.step;
    if (recording.micro >= 0) summary.micro = recording.micro;
    summary.tensor = tensors[t].info->name;
    summary.role = tensors[t].info->role;
    std::vector<uint64_t> counts(bins.size());
    Tabulator tabulator;
    VisitValues(recording, tensors[t], [&](uint64_t, std::span<const float> values) {
      tabulator.Add(values);
      bins.Add(values, counts);
    });
    summary.table = tabulator.Take();
    if (summary.table.zeros > 0) summary.buckets[LimitOf(limits, 0)] += summary.table.zeros;
    for (size_t bin = 0; bin < bins.size(); ++bin) {
      const uint64_t count = counts[bin];
      if (count == 0) continue;
      const float low = bins.low(bin);
      if (low < min_normal) summary.denormals += count;
      summary.exponents[std::ilogb(low)] += count;
      summary.buckets[LimitOf(limits, low)] += count;
    }
  });
  for (const TensorSummary& summary : summaries) take(summary);
}

// `each` passes on the tensors, in order.
void SummariesRows(
    const TellRows& trace, float denormal_below,
    const std::function<void(const std::function<void(const TensorSummary&)>&)>& each,
    RowSink& row) {
  row("schema", "dlsim.summaries/1", "", kOnLines);
  row("trace", trace, "what was read", kOnLines);
  row("options", std::map<std::string, float>{{"denormal_below", denormal_below}},
      "`denormal_below`: 2^-14, the trainer's limit with mixed precision, or the smallest normal "
      "value of the one --format given",
      kOnLines);
  row.Stream<TensorSummary>("recordings", "one object per step, micro-step and tensor", each,
                            kOnLines);
}

}  // namespace

void WriteSummaries(const TraceReader& trace, std::span<const std::string> paths, float min_normal,
                    OutputFile& out) {
  const std::vector<double> limits = BucketLimits();
  const MagnitudeBins bins(limits, min_normal);
  const auto each = [&](const std::function<void(const TensorSummary&)>& take) {
    Progress progress(trace.step_count());
    for (size_t i = 0; i < trace.step_count(); ++i) {
      progress.Update(i);
      const TraceStep step = trace.Load(i);
      for (const Recording& recording : step.recordings) {
        Summarize(step, recording, min_normal, limits, bins, take);
      }
    }
  };
  const SourceFacts facts = FactsOf(trace);
  WriteJson([&](RowSink& row) { SummariesRows(RowsOf(facts, paths), min_normal, each, row); }, out);
}

void AddSummariesKeys(std::vector<KeyTable>& tables) {
  AddKeys(
      "", [](RowSink& row) { SummariesRows({}, 0, {}, row); }, tables);
}

}  // namespace dlsim::sim
