// SPDX-License-Identifier: Apache-2.0
#include "src/summaries/summaries.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/measure.h"
#include "src/base/check.h"
#include "src/base/parallel.h"
#include "src/measure/load_floats.h"
#include "src/measure/measure_chunk.h"
#include "src/measure/step_blocks.h"

namespace dlsim {
namespace {

uint32_t MagnitudeBits(float value) { return std::bit_cast<uint32_t>(value) & ~codec::kSignBit; }

using ChunkBuffer = std::array<float, kChunkElements>;

// Rounds the values to a format and back, as floats that are still scaled.
void Quantize(const Format& format, std::span<float> values) {
  std::array<uint32_t, kChunkElements> buffer;
  const std::span<uint32_t> codes = std::span(buffer).first(values.size());
  ArrayConversion how;
  how.conversion.format = format;
  EncodeArray(how, values, codes);
  DecodeArray(format, codes, values);
}

// Counts the values by magnitude. Neighbors often share an exponent: counting them in four tables
// keeps an increment from waiting for the one before.
void CountMagnitudes(std::span<const float> values, float min_normal, TensorSummary& summary) {
  constexpr size_t kTables = 4;
  std::array<std::array<uint32_t, 256>, kTables> tables{};
  for (size_t i = 0; i < values.size(); ++i) {
    ++tables[i % kTables][MagnitudeBits(values[i]) >> 23];
  }
  const uint32_t min_normal_bits = MagnitudeBits(min_normal);
  uint32_t zeros = 0, small = 0, inf = 0;
  for (const float value : values) {
    const uint32_t magnitude = MagnitudeBits(value);
    zeros += magnitude == 0;
    small += magnitude < min_normal_bits;
    inf += magnitude == codec::kInfinityBits;
  }
  const auto count_of = [&](size_t field) {
    return tables[0][field] + tables[1][field] + tables[2][field] + tables[3][field];
  };
  summary.zeros = zeros;
  summary.denormals = small - std::min(small, zeros);
  summary.inf = inf;
  summary.nan = count_of(255) - inf;
  constexpr size_t kSubnormalExponents = 23;
  for (size_t field = 1; field < 255; ++field) {
    summary.exponents[kSubnormalExponents + field - 1] = count_of(field);
  }
  if (count_of(0) == zeros) return;
  for (const float value : values) {
    const uint32_t magnitude = MagnitudeBits(value);
    const bool is_subnormal = magnitude != 0 && magnitude < codec::kImplicitBit;
    if (is_subnormal) ++summary.exponents[static_cast<size_t>(std::bit_width(magnitude)) - 1];
  }
}

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

// Returns the index into TensorflowBucketLimits() of log2(magnitude + kOffset); `magnitude` is
// finite.
size_t TensorflowBucket(float magnitude) {
  static const Edges all = MakeEdges();
  const float sum = magnitude + kOffset;
  const uint32_t field = std::bit_cast<uint32_t>(sum) >> 23;
  const float* const edges = all.edges.data();
  const float* const above =
      std::upper_bound(edges + all.begin[field], edges + all.end[field], sum);
  return all.first_bucket + static_cast<size_t>(above - edges);
}

void CountTensorflowBuckets(std::span<const float> values, TensorSummary& summary) {
  summary.tensorflow.resize(TensorflowBucketLimits().size());
  for (const float value : values) {
    const uint32_t magnitude = MagnitudeBits(value);
    if (magnitude >= codec::kInfinityBits) continue;
    ++summary.tensorflow[TensorflowBucket(std::bit_cast<float>(magnitude))];
  }
}

// Summarizes at most kChunkElements values.
TensorSummary SummarizeChunk(std::span<const float> values, const SummaryOptions& options) {
  DLSIM_CHECK(values.size() <= kChunkElements);
  ChunkBuffer buffer;
  if (options.scale != 1.0f || options.quantize) {
    const std::span<float> changed = std::span(buffer).first(values.size());
    for (size_t i = 0; i < values.size(); ++i) changed[i] = values[i] * options.scale;
    if (options.quantize) Quantize(*options.quantize, changed);
    values = changed;
  }
  TensorSummary summary;
  summary.elements = values.size();
  summary.sum_of_squares = SumOfSquaresOfChunk(values);
  CountMagnitudes(values, options.min_normal, summary);
  if (options.tensorflow_histogram == TensorflowHistogram::kCount) {
    CountTensorflowBuckets(values, summary);
  }
  return summary;
}

// Summarizes up to a block of values that `load` gives chunk by chunk.
template <class Load>
TensorSummary SummarizeBlock(size_t count, const SummaryOptions& options, const Load& load) {
  TensorSummary summary;
  for (size_t begin = 0; begin < count; begin += kChunkElements) {
    const size_t length = std::min(kChunkElements, count - begin);
    summary.Merge(SummarizeChunk(load(begin, length), options));
  }
  return summary;
}

}  // namespace

std::span<const double> TensorflowBucketLimits() {
  static const std::vector<double> limits = MakeLimits();
  return limits;
}

void TensorSummary::Merge(const TensorSummary& later) {
  elements += later.elements;
  zeros += later.zeros;
  denormals += later.denormals;
  nan += later.nan;
  inf += later.inf;
  sum_of_squares += later.sum_of_squares;
  for (size_t i = 0; i < exponents.size(); ++i) exponents[i] += later.exponents[i];
  tensorflow.resize(std::max(tensorflow.size(), later.tensorflow.size()));
  for (size_t i = 0; i < later.tensorflow.size(); ++i) tensorflow[i] += later.tensorflow[i];
}

std::vector<TensorSummary> SummarizeRecording(const Recording& recording,
                                              const SummaryOptions& options) {
  std::vector<TensorSources> sources;
  for (const TraceTensor& tensor : recording.tensors) {
    sources.push_back({{tensor.name, tensor.role},
                       tensor.elements,
                       {{&tensor, recording.CarriedScale(tensor.role)}}});
  }
  std::vector<TensorSummary> totals(sources.size());
  ForEachWave(sources, [&](std::span<const Block> wave) {
    std::vector<TensorSummary> partial(wave.size());
    ParallelFor(wave.size(), [&](size_t i) {
      ChunkBuffer buffer;
      const Source& source = sources[wave[i].tensor].recordings.front();
      const DType dtype = source.tensor->dtype;
      const std::byte* const bytes = ReadBlock(sources[wave[i].tensor], wave[i]).front();
      partial[i] = SummarizeBlock(wave[i].count, options, [&](size_t begin, size_t length) {
        const std::span<float> chunk = std::span(buffer).first(length);
        LoadFloats(dtype, bytes + begin * DTypeSize(dtype), source.grad_scale, chunk);
        return std::span<const float>(chunk);
      });
    });
    for (size_t i = 0; i < wave.size(); ++i) totals[wave[i].tensor].Merge(partial[i]);
  });
  return totals;
}

std::optional<int> MedianExponent(const TensorSummary& summary) {
  uint64_t below = 0;
  for (size_t i = 0; i < summary.exponents.size(); ++i) {
    below += summary.exponents[i];
    if (below > 0 && below >= summary.nonzero_finite() - below) {
      return kLowestExponent + static_cast<int>(i);
    }
  }
  return std::nullopt;
}

}  // namespace dlsim
