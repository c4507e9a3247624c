// SPDX-License-Identifier: Apache-2.0
#include "src/measure/chunk_detail.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

namespace dlsim {
namespace {

bool KeepsOrder(const DetailQuestion& detail, const Measurement& measurement) {
  const Rounding rounding = measurement.conversion.rounding;
  const bool by_magnitude = rounding == Rounding::kNearestEven ||
                            rounding == Rounding::kTowardZero || rounding == Rounding::kNearestAway;
  return by_magnitude && !detail.sums && std::isfinite(measurement.scale) &&
         std::isfinite(1.0f / measurement.scale);
}

}  // namespace

GradientDetail DetailOf(const DetailQuestion& question, std::span<const float> unscaled,
                        std::span<const float> scaled) {
  const bool limit_unscaled = question.limit_domain == ClipDomain::kUnscaled;
  GradientDetail detail;
  for (size_t i = 0; i < unscaled.size(); ++i) {
    const float gradient = std::fabs(unscaled[i]), still_scaled = std::fabs(scaled[i]);
    if (question.sums) {
      detail.scaled_sum += double{scaled[i]};
      detail.scaled_sum_of_squares += double{still_scaled} * double{still_scaled};
    }
    const bool replaces = gradient > detail.absmax || std::isnan(gradient);  // and NaN stays
    detail.absmax = replaces ? gradient : detail.absmax;
    detail.below_edge += still_scaled < question.edge ? 1 : 0;
    detail.above_edge += still_scaled >= question.edge ? 1 : 0;
    detail.above_limit += (limit_unscaled ? gradient : still_scaled) > question.limit ? 1 : 0;
  }
  detail.elements = unscaled.size();
  if (!std::isfinite(detail.absmax)) detail.absmax = std::numeric_limits<float>::infinity();
  return detail;
}

ChunkDetail::ChunkDetail(const DetailQuestion& detail, const Measurement& measurement)
    : detail_(detail),
      measurement_(measurement),
      spec_(MakeCodecSpec(measurement.conversion)),
      keeps_order_(KeepsOrder(detail, measurement)) {
  if (!keeps_order_) return;
  const bool limit_unscaled = detail.limit_domain == ClipDomain::kUnscaled;
  // The NaN of a format without infinity counts as beyond them.
  edge_ = FirstMagnitude([&](Result result) { return !(result.scaled < detail.edge); });
  limit_ = FirstMagnitude([&](Result result) {
    return !((limit_unscaled ? result.unscaled : result.scaled) <= detail.limit);
  });
}

ChunkDetail::Result ChunkDetail::ResultOf(uint32_t magnitude) const {
  const float scaled = std::fabs(std::bit_cast<float>(magnitude) * measurement_.scale);
  const EncodeResult result =
      Encode(spec_, measurement_.conversion.rounding, std::bit_cast<uint32_t>(scaled));
  const float decoded = std::bit_cast<float>(Decode(spec_, result.code));
  return {decoded, std::fabs(decoded * (1.0f / measurement_.scale))};
}

// Returns the smallest magnitude whose result passes, infinity's if no finite one does.
template <class Passes>
uint32_t ChunkDetail::FirstMagnitude(const Passes& passes) const {
  uint32_t low = 0, high = codec::kInfinityBits;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (passes(ResultOf(middle))) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

GradientDetail ChunkDetail::FromMagnitudes(std::span<const float> values,
                                           const ChunkInputs& inputs) const {
  const uint32_t absmax = std::bit_cast<uint32_t>(inputs.absmax);
  const auto below = [&](uint32_t magnitude) {
    return magnitude > absmax ? values.size() : CountBelow(values, magnitude);
  };
  GradientDetail detail;
  detail.elements = values.size();
  detail.absmax = ResultOf(absmax).unscaled;
  if (!std::isfinite(detail.absmax)) detail.absmax = std::numeric_limits<float>::infinity();
  detail.below_edge = below(edge_);
  detail.above_edge = values.size() - detail.below_edge;
  detail.above_limit = values.size() - below(limit_);
  return detail;
}

GradientDetail ChunkDetail::Find(std::span<const float> values, uint64_t first_index,
                                 const ChunkInputs& inputs, const TensorStats& stats) {
  if (keeps_order_ && inputs.finite && stats.nonfinite_outputs == 0) {
    return FromMagnitudes(values, inputs);
  }
  unscaled_.assign(values.size(), 0.0f);
  scaled_.assign(values.size(), 0.0f);
  MeasureAndAccumulateChunk(values, first_index, measurement_, {unscaled_, scaled_});
  return DetailOf(detail_, unscaled_, scaled_);
}

}  // namespace dlsim
