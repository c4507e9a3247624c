// SPDX-License-Identifier: Apache-2.0
// What summaries count, against a plain definition per element and figures that NumPy computed.
#include "src/summaries/summaries.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "dlsim/measure.h"
#include "src/measure/measure_chunk.h"
#include "tests/support/special_values.h"
#include "tests/support/trace_test_util.h"
#ifdef _OPENMP
#include <omp.h>
#endif

namespace dlsim {
namespace {

using Pairs = std::map<int, uint64_t>;

Pairs NonemptyExponents(const TensorSummary& summary) {
  Pairs pairs;
  for (size_t i = 0; i < summary.exponents.size(); ++i) {
    if (summary.exponents[i] > 0) {
      pairs[kLowestExponent + static_cast<int>(i)] = summary.exponents[i];
    }
  }
  return pairs;
}

std::map<double, uint64_t> NonemptyBuckets(const TensorSummary& summary) {
  std::map<double, uint64_t> pairs;
  for (size_t i = 0; i < summary.tensorflow.size(); ++i) {
    if (summary.tensorflow[i] > 0) pairs[TensorflowBucketLimits()[i]] = summary.tensorflow[i];
  }
  return pairs;
}

// Every field, with sums as bits.
std::vector<uint64_t> AllFields(const TensorSummary& s) {
  std::vector<uint64_t> fields = {s.elements, s.zeros, s.denormals,
                                  s.nan,      s.inf,   std::bit_cast<uint64_t>(s.sum_of_squares)};
  fields.insert(fields.end(), s.exponents.begin(), s.exponents.end());
  fields.insert(fields.end(), s.tensorflow.begin(), s.tensorflow.end());
  return fields;
}

// Floats of random bits: every exponent and sign, subnormals, infinities and NaN.
std::vector<float> RandomFloats(size_t count) {
  std::mt19937 random(7);
  std::vector<float> values;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = static_cast<uint32_t>(random());
    values.push_back(std::bit_cast<float>(bits));
  }
  for (const float special : {0.0f, -0.0f, kInf, -kInf, kQuietNan, 0x1p-149f, -0x1p-126f}) {
    values.push_back(special);
  }
  return values;
}

TensorSummary SummarizeArray(const std::vector<float>& values, const SummaryOptions& options) {
  TraceTensor tensor;
  tensor.shape = {values.size()};
  tensor.elements = values.size();
  tensor.memory = std::as_bytes(std::span(values)).data();
  Recording recording;
  recording.tensors = {tensor};
  return SummarizeRecording(recording, options).front();
}

SummaryOptions WithBuckets() {
  SummaryOptions options;
  options.tensorflow_histogram = TensorflowHistogram::kCount;
  return options;
}

TEST(Summaries, DenormalIsNonzeroBelowTheLimit) {
  const std::vector<float> values = {
      0x1p-14f, -0x1p-14f, std::nextafter(0x1p-14f, 0.0f), -0x1p-24f, 0x1p-149f, 0.0f, -0.0f, 1.0f};
  const TensorSummary mixed = SummarizeArray(values, {});
  EXPECT_EQ(mixed.denormals, 3u);
  EXPECT_EQ(mixed.denormal_fraction(), 3.0 / 8.0);
  SummaryOptions options;
  options.min_normal = kFloat32MinNormal;
  EXPECT_EQ(SummarizeArray(values, options).denormals, 1u);
}

TEST(Summaries, SparsityIsTheShareOfBothZeros) {
  const TensorSummary summary = SummarizeArray(std::vector{0.0f, -0.0f, 0x1p-149f, kQuietNan}, {});
  EXPECT_EQ(summary.zeros, 2u);
  EXPECT_EQ(summary.sparsity(), 0.5);
  EXPECT_EQ(SummarizeArray({}, {}).sparsity(), 0);
  EXPECT_EQ(SummarizeArray({}, {}).denormal_fraction(), 0);
}

TEST(Summaries, NonfiniteValuesAreCountedApartAndMakeTheNorm) {
  const TensorSummary with_inf = SummarizeArray(std::vector{3.0f, -kInf}, {});
  EXPECT_EQ(with_inf.inf, 1u);
  EXPECT_EQ(with_inf.nan, 0u);
  EXPECT_EQ(with_inf.norm(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(NonemptyExponents(with_inf), (Pairs{{1, 1}}));
  const TensorSummary with_nan = SummarizeArray(std::vector{3.0f, kInf, kQuietNan, -kQuietNan}, {});
  EXPECT_EQ(with_nan.inf, 1u);
  EXPECT_EQ(with_nan.nan, 2u);
  EXPECT_EQ(with_nan.denormals, 0u);
  EXPECT_TRUE(std::isnan(with_nan.norm()));
  EXPECT_FALSE(std::signbit(with_nan.norm()));
}

TEST(Summaries, NormIsFloat64) {
  EXPECT_EQ(SummarizeArray(std::vector{3e38f, 0.0f}, {}).norm(), double{3e38f});
  EXPECT_EQ(SummarizeArray(std::vector{-0x1p-149f}, {}).norm(), 0x1p-149);
}

TEST(Summaries, ExponentsAreFloorOfLog2) {
  const std::vector<float> values = {0x1p-149f, 0x1.8p-148f, std::nextafter(0x1p-126f, 0.0f),
                                     0x1p-126f, -0.5f,       std::nextafter(1.0f, 0.0f),
                                     1.0f,      -1.99f,      std::numeric_limits<float>::max()};
  EXPECT_EQ(NonemptyExponents(SummarizeArray(values, {})),
            (Pairs{{-149, 1}, {-148, 1}, {-127, 1}, {-126, 1}, {-1, 2}, {0, 2}, {127, 1}}));
}

TEST(Summaries, EqualThePlainDefinitionOnRandomBits) {
  const std::vector<float> values = RandomFloats(100000);
  TensorSummary expected;
  std::map<double, uint64_t> buckets;
  const std::span<const double> limits = TensorflowBucketLimits();
  for (const float value : values) {
    const float magnitude = std::fabs(value);
    ++expected.elements;
    expected.zeros += value == 0;
    expected.nan += std::isnan(value);
    expected.inf += std::isinf(value);
    expected.denormals += magnitude < 0x1p-14f && value != 0;
    if (!std::isfinite(value)) continue;
    if (value != 0) ++expected.exponents[static_cast<size_t>(std::ilogb(value) + 149)];
    const double logarithm = std::log2(static_cast<double>(magnitude + 0x1p-50f));
    ++buckets[*std::upper_bound(limits.begin(), limits.end(), logarithm)];
  }
  TensorSummary summary = SummarizeArray(values, WithBuckets());
  EXPECT_EQ(NonemptyBuckets(summary), buckets);
  summary.tensorflow.clear();
  summary.sum_of_squares = 0;
  EXPECT_EQ(AllFields(summary), AllFields(expected));
}

TEST(Summaries, TensorflowBucketsBeginAtTheirLimits) {
  const auto bucket_of = [](float value) {
    return NonemptyBuckets(SummarizeArray(std::vector{value}, WithBuckets())).begin()->first;
  };
  const std::span<const double> limits = TensorflowBucketLimits();
  EXPECT_EQ(limits.size(), 1551u);
  EXPECT_EQ(limits.front(), -std::numeric_limits<double>::max());
  EXPECT_EQ(limits.back(), std::numeric_limits<double>::max());
  EXPECT_EQ(limits[775], 0.0);
  EXPECT_EQ(limits[776], 1e-12);
  EXPECT_EQ(limits[777], 1e-12 * 1.1);
  EXPECT_EQ(bucket_of(1.0f), 1e-12);  // 2^-50 is lost in the float32 sum
  EXPECT_LT(bucket_of(std::nextafter(1.0f, 0.0f)), 0);
  EXPECT_EQ(bucket_of(0.0f), bucket_of(-0x1p-149f));
  EXPECT_LT(bucket_of(0.0f), -45);
  EXPECT_GT(bucket_of(std::numeric_limits<float>::max()), 128);
  for (const double limit : limits) {
    if (limit < -20 || limit > 127 || std::fabs(limit) < 0.01) continue;
    const float below = static_cast<float>(std::exp2(limit) * (1 - 0x1p-22));
    const float above = static_cast<float>(std::exp2(limit) * (1 + 0x1p-22));
    EXPECT_EQ(bucket_of(below), limit);
    EXPECT_GT(bucket_of(above), limit);
  }
}

TEST(Summaries, ScaleAndQuantizeComeFirst) {
  SummaryOptions options;
  options.scale = 0x1p10f;
  const std::vector<float> values = {0x1p-35f, 0x1p-34f, 0x1.8p-25f, 63.9f,
                                     64.0f,    -0.0f,    kQuietNan};
  const TensorSummary scaled = SummarizeArray(values, options);
  EXPECT_EQ(NonemptyExponents(scaled), (Pairs{{-25, 1}, {-24, 1}, {-15, 1}, {15, 1}, {16, 1}}));
  EXPECT_EQ(scaled.denormals, 3u);
  options.quantize = kFp16;
  const TensorSummary quantized = SummarizeArray(values, options);
  EXPECT_EQ(NonemptyExponents(quantized), (Pairs{{-24, 1}, {-15, 1}, {15, 1}}));
  EXPECT_EQ(quantized.zeros, 2u);
  EXPECT_EQ(quantized.denormals, 2u);
  EXPECT_EQ(quantized.inf, 1u);
  EXPECT_EQ(quantized.nan, 1u);
}

TEST(Summaries, MedianSplitsTheFiniteNonzeroValues) {
  const auto median = [](const std::vector<float>& values) {
    return MedianExponent(SummarizeArray(values, {}));
  };
  EXPECT_EQ(median({}), std::nullopt);
  EXPECT_EQ(median({0.0f, kInf}), std::nullopt);
  EXPECT_EQ(median({0.0f, 0.0f, 0.0f, 4.0f}), 2);
  EXPECT_EQ(median({1.0f, 4.0f}), 0);
  EXPECT_EQ(median({1.0f, 4.0f, 4.0f}), 2);
}

TEST(Summaries, ThreadsGiveTheSameBits) {
  std::vector<float> values = RandomFloats(300000);
  for (float& value : values) value = std::isfinite(value) ? value : 1.0f;
  const std::vector<uint64_t> expected = AllFields(SummarizeArray(values, WithBuckets()));
#ifdef _OPENMP
  const int threads = omp_get_max_threads();
  for (const int count : {1, 2, 4}) {
    omp_set_num_threads(count);
    EXPECT_EQ(AllFields(SummarizeArray(values, WithBuckets())), expected) << count << " threads";
  }
  omp_set_num_threads(threads);
#endif
  double sum = 0;
  for (size_t block = 0; block < values.size(); block += 65536) {
    double block_sum = 0;
    const size_t end = std::min(values.size(), block + 65536);
    for (size_t i = block; i < end; i += kChunkElements) {
      block_sum +=
          SumOfSquaresOfChunk(std::span(values).subspan(i, std::min(kChunkElements, end - i)));
    }
    sum += block_sum;
  }
  EXPECT_EQ(std::bit_cast<double>(expected[5]), sum);
}

TEST(Summaries, RecordingEqualsItsArrays) {
  constexpr size_t kElements = 200 * 65536 / 16 + 1234;
  const std::vector<float> values = RandomFloats(kElements);
  Recording recording;
  recording.grad_scale = 8.0f;
  TraceTensor lent;
  lent.shape = {values.size()};
  lent.elements = values.size();
  lent.memory = std::as_bytes(std::span(values)).data();
  TraceTensor read = lent;
  read.memory = nullptr;
  read.read = [&](uint64_t offset, std::span<std::byte> out) {
    std::memcpy(out.data(), std::as_bytes(std::span(values)).data() + offset, out.size());
  };
  TraceTensor empty;
  empty.elements = 0;
  TraceTensor in_order = read;
  in_order.reads_in_order = true;
  recording.tensors = {lent, empty, read, in_order};
  std::vector<float> unscaled = values;
  for (float& value : unscaled) value *= 0.125f;
  const std::vector<uint64_t> expected = AllFields(SummarizeArray(unscaled, {}));
  const std::vector<TensorSummary> summaries = SummarizeRecording(recording, {});
  ASSERT_EQ(summaries.size(), 4u);
  EXPECT_EQ(AllFields(summaries[0]), expected);
  EXPECT_EQ(summaries[1].elements, 0u);
  EXPECT_EQ(AllFields(summaries[2]), expected);
  EXPECT_EQ(AllFields(summaries[3]), expected);
}

// Computed with NumPy 2.4 from the bytes of the file; the norm in the order of measure.h.
TEST(Summaries, EqualNumpyOnARealTensor) {
  TraceOptions options;
  options.tensors = "blocks.1.attn.qkv.bias.grad";
  const TraceReader trace =
      OpenTrace({DLSIM_TEST_DATA "/traces/lm-trouble-cut/step-00000171.safetensors"}, options);
  const TraceStep step = trace.Load(0);
  const TensorSummary summary = SummarizeRecording(step.recordings[0], WithBuckets()).front();
  EXPECT_EQ(summary.elements, 96u);
  EXPECT_EQ(summary.zeros, 1u);
  EXPECT_EQ(summary.denormals, 36u);
  EXPECT_EQ(summary.norm(), 0.058674846521793236);
  EXPECT_EQ(MedianExponent(summary), -13);
  EXPECT_EQ(NonemptyExponents(summary), (Pairs{{-39, 2},
                                               {-38, 5},
                                               {-37, 14},
                                               {-36, 7},
                                               {-35, 3},
                                               {-17, 1},
                                               {-15, 4},
                                               {-14, 9},
                                               {-13, 8},
                                               {-12, 10},
                                               {-11, 1},
                                               {-10, 3},
                                               {-9, 7},
                                               {-8, 8},
                                               {-7, 8},
                                               {-6, 5}}));
  const std::map<double, uint64_t> buckets = {
      {-45.66527761459169, 1},  {-37.73989885503445, 3},   {-34.30899895912222, 28},
      {-16.005401222038564, 1}, {-14.550364747307786, 3},  {-13.22760431573435, 7},
      {-12.025094832485772, 9}, {-10.931904393168884, 13}, {-9.034631729891638, 2},
      {-8.213301572628762, 5},  {-7.466637793298873, 11},  {-6.7878525393626115, 1},
      {-6.1707750357841915, 5}, {-5.609795487076537, 4},   {-5.099814079160488, 3}};
  EXPECT_EQ(NonemptyBuckets(summary), buckets);
}

}  // namespace
}  // namespace dlsim
