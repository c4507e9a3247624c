// SPDX-License-Identifier: Apache-2.0
#include "src/summaries/tensorflow_buckets.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "src/summaries/summaries.h"

namespace dlsim {
namespace {

// Added before the logarithm, so that zeros have one.
constexpr float kOffset = 0x1p-50f;

std::vector<double> MakeLimits() {
  std::vector<double> limits = {0.0};
  for (double limit = 1e-12; limit < 1e20; limit *= 1.1) limits.push_back(limit);
  limits.push_back(std::numeric_limits<double>::max());
  std::vector<double> all;
  for (size_t i = limits.size() - 1; i > 0; --i) all.push_back(-limits[i]);
  all.insert(all.end(), limits.begin(), limits.end());
  return all;
}

// The limits as float32 magnitudes, and where those of each float32 exponent field begin.
struct Edges {
  size_t first_bucket = 0;          // that of the smallest sum, kOffset
  std::vector<float> edges;         // smallest float32 of the buckets that follow
  std::array<size_t, 256> begin{};  // by exponent field: edges before it
  std::array<size_t, 256> end{};    // by exponent field: edges up to it
};

// Returns the smallest float32 that is not below 2^exponent. Only 2^0 is a float32 itself: the
// other limits are no integers, and their powers are farther from any float32 than exp2 is off.
float CeilingOfPower(double exponent) {
  const double power = std::exp2(exponent);
  const float nearest = static_cast<float>(power);
  return nearest < power ? std::nextafter(nearest, std::numeric_limits<float>::max()) : nearest;
}

Edges MakeEdges() {
  const std::span<const double> limits = TensorflowBucketLimits();
  const auto first = std::upper_bound(limits.begin(), limits.end(), std::log2(kOffset));
  Edges made;
  made.first_bucket = static_cast<size_t>(first - limits.begin());
  for (auto limit = first; limit != limits.end() && *limit < kHighestExponent + 1; ++limit) {
    made.edges.push_back(CeilingOfPower(*limit));
  }
  for (uint32_t field = 0; field < 255; ++field) {
    const auto before = [&](uint32_t bits) {
      const float bound = std::bit_cast<float>(bits);
      const auto found = std::lower_bound(made.edges.begin(), made.edges.end(), bound);
      return static_cast<size_t>(found - made.edges.begin());
    };
    made.begin[field] = before(field << 23);
    made.end[field] = before((field + 1) << 23);
  }
  return made;
}

}  // namespace

std::span<const double> TensorflowBucketLimits() {
  static const std::vector<double> limits = MakeLimits();
  return limits;
}

size_t TensorflowBucket(float magnitude) {
  static const Edges all = MakeEdges();
  const float sum = magnitude + kOffset;
  const uint32_t field = std::bit_cast<uint32_t>(sum) >> 23;
  const float* const edges = all.edges.data();
  const float* const above =
      std::upper_bound(edges + all.begin[field], edges + all.end[field], sum);
  return all.first_bucket + static_cast<size_t>(above - edges);
}

}  // namespace dlsim
