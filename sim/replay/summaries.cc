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

#include "dlsim/profile.h"
#include "sim/base/json_stream.h"
#include "sim/base/source_text.h"
#include "src/base/first_magnitude.h"

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

// The magnitudes at which a figure changes; powers of two that are normal are always among them.
HistogramEdges EdgesOf(std::span<const double> limits, float min_normal) {
  std::vector<uint32_t> edges = {std::bit_cast<uint32_t>(min_normal)};
  for (uint32_t subnormal = 1; subnormal < codec::kImplicitBit; subnormal *= 2) {
    edges.push_back(subnormal);
  }
  for (const double limit : limits) {
    edges.push_back(FirstMagnitude([&](uint32_t magnitude) {
      return LimitOf(limits, std::bit_cast<float>(magnitude)) > limit;
    }));
  }
  return HistogramEdges(std::move(edges));
}

// Adds the figures of a tensor; the norm is infinite or NaN if a value is.
void AddFigures(const Histogram& values, const HistogramEdges& edges,
                std::span<const double> limits, float min_normal, Json& object) {
  uint64_t denormals = 0;
  std::map<int, uint64_t> exponents;   // floor(log2(magnitude)) of nonzero finite values
  std::map<double, uint64_t> buckets;  // of finite values, by upper limit
  if (values.zeros > 0) buckets[LimitOf(limits, 0)] += values.zeros;
  double squares = values.nan > 0   ? std::numeric_limits<double>::quiet_NaN()
                   : values.inf > 0 ? std::numeric_limits<double>::infinity()
                                    : 0;
  for (const SignHistogram& sign : values.signs) {
    for (const HistogramBin& bin : sign.bins) {
      const float low = std::bit_cast<float>(edges.bits()[bin.bin]);
      if (low < min_normal) denormals += bin.count;
      exponents[std::ilogb(low)] += bin.count;
      buckets[LimitOf(limits, low)] += bin.count;
      squares += static_cast<double>(bin.squares) * edges.square_unit(bin.bin);
    }
  }
  const auto share = [&](uint64_t count) {
    return static_cast<double>(count) / std::fmax(1, static_cast<double>(values.elements));
  };
  object["norm"] = JsonNumber(std::sqrt(squares));
  object["elements"] = values.elements;
  object["zeros"] = values.zeros;
  object["denormals"] = denormals;
  object["nan"] = values.nan;
  object["inf"] = values.inf;
  object["sparsity"] = share(values.zeros);
  object["denormal_fraction"] = share(denormals);
  object["histogram"] = exponents;
  object["tensorflow_histogram"] = buckets;
}

}  // namespace

void WriteSummaries(const TraceReader& trace, std::span<const std::string> paths, float min_normal,
                    OutputFile& out, const std::function<void(size_t)>& on_step) {
  const std::vector<double> limits = BucketLimits();
  const HistogramEdges edges = EdgesOf(limits, min_normal);
  JsonStream json("dlsim.summaries/1", JsonTrace(FactsOf(trace), paths),
                  {{"denormal_below", min_normal}}, out);
  json.BeginArray("recordings");
  for (size_t i = 0; i < trace.step_count(); ++i) {
    const TraceStep step = trace.Load(i);
    const ProfileStep profile = ProfileOf(step, edges, {});  // a part is a recording
    std::map<std::string, size_t> index;
    for (size_t t = 0; t < profile.tensors.size(); ++t) index[profile.tensors[t].name] = t;
    for (size_t part = 0; part < step.recordings.size(); ++part) {
      for (const TraceTensor& tensor : step.recordings[part].tensors) {
        Json object = {
            {"step", step.step},
            {"micro", profile.micro_steps[part] < 0 ? Json() : Json(profile.micro_steps[part])},
            {"tensor", tensor.name},
            {"role", NameOf(tensor.role)}};
        AddFigures(profile.histograms[part][index.at(tensor.name)], edges, limits, min_normal,
                   object);
        json.Item(object);
      }
    }
    on_step(i + 1);
  }
  json.EndArray();
  json.Finish();
}

}  // namespace dlsim::sim
