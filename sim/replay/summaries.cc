// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/summaries.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/codec.h"
#include "dlsim/table.h"
#include "dlsim/tensor_values.h"
#include "sim/base/json_stream.h"
#include "sim/base/source_text.h"
#include "sim/replay/step_sources.h"
#include "src/base/first_magnitude.h"
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
      lows_.push_back(FirstMagnitude([&](uint32_t magnitude) {
        return LimitOf(limits, std::bit_cast<float>(magnitude)) > limit;
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

// What is counted of a tensor of a recording.
struct Counted {
  TensorTable table;
  std::vector<uint64_t> bins;
};

// Adds the figures of a tensor; the norm is infinite or NaN if a value is.
void AddFigures(const Counted& counted, const MagnitudeBins& bins, std::span<const double> limits,
                float min_normal, Json& object) {
  const TensorTable& table = counted.table;
  uint64_t denormals = 0;
  std::map<int, uint64_t> exponents;   // floor(log2(magnitude)) of nonzero finite values
  std::map<double, uint64_t> buckets;  // of finite values, by upper limit
  if (table.zeros > 0) buckets[LimitOf(limits, 0)] += table.zeros;
  for (size_t bin = 0; bin < bins.size(); ++bin) {
    const uint64_t count = counted.bins[bin];
    if (count == 0) continue;
    const float low = bins.low(bin);
    if (low < min_normal) denormals += count;
    exponents[std::ilogb(low)] += count;
    buckets[LimitOf(limits, low)] += count;
  }
  const double norm = table.nan > 0   ? std::numeric_limits<double>::quiet_NaN()
                      : table.inf > 0 ? std::numeric_limits<double>::infinity()
                                      : std::sqrt(table.sum_of_squares);
  const auto share = [&](uint64_t count) {
    return static_cast<double>(count) / std::fmax(1, static_cast<double>(table.elements));
  };
  object["norm"] = JsonNumber(norm);
  object["elements"] = table.elements;
  object["zeros"] = table.zeros;
  object["denormals"] = denormals;
  object["nan"] = table.nan;
  object["inf"] = table.inf;
  object["sparsity"] = share(table.zeros);
  object["denormal_fraction"] = share(denormals);
  object["histogram"] = exponents;
  object["tensorflow_histogram"] = buckets;
}

}  // namespace

void WriteSummaries(const TraceReader& trace, std::span<const std::string> paths, float min_normal,
                    OutputFile& out, const std::function<void(size_t)>& on_step) {
  const std::vector<double> limits = BucketLimits();
  const MagnitudeBins bins(limits, min_normal);
  JsonStream json("dlsim.summaries/1", JsonTrace(FactsOf(trace), paths),
                  {{"denormal_below", min_normal}}, out);
  json.BeginArray("recordings");
  for (size_t i = 0; i < trace.step_count(); ++i) {
    const TraceStep step = trace.Load(i);
    for (const Recording& recording : step.recordings) {
      const std::vector<TraceTensor>& tensors = recording.tensors;
      std::vector<Counted> counted(tensors.size());
      ParallelFor(tensors.size(), [&](size_t t) {
        Counted& of = counted[t];
        of.bins.resize(bins.size());
        Tabulator tabulator;
        VisitValues(recording, tensors[t], [&](uint64_t, std::span<const float> values) {
          tabulator.Add(values);
          bins.Add(values, of.bins);
        });
        of.table = tabulator.Take();
      });
      for (size_t t = 0; t < tensors.size(); ++t) {
        Json object = {{"step", step.step},
                       {"micro", recording.micro < 0 ? Json() : Json(recording.micro)},
                       {"tensor", tensors[t].name},
                       {"role", NameOf(tensors[t].role)}};
        AddFigures(counted[t], bins, limits, min_normal, object);
        json.Item(object);
      }
    }
    on_step(i + 1);
  }
  json.EndArray();
  json.Finish();
}

}  // namespace dlsim::sim
