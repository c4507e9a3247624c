// SPDX-License-Identifier: Apache-2.0
// Emulated sums equal exact integer arithmetic, rounded once per addition, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "dlsim/accumulate.h"
#include "dlsim/format.h"
#include "src/sums/accumulators.h"
#include "tests/support/sum_oracle.h"

namespace dlsim {
namespace {

constexpr Rounding kRoundings[] = {Rounding::kNearestEven,    Rounding::kTowardZero,
                                   Rounding::kNearestAway,    Rounding::kTowardPositive,
                                   Rounding::kTowardNegative, Rounding::kStochastic};

std::vector<Format> FormatsOfSums() {
  std::vector<Format> formats;
  for (const FormatRow& row : kFormats) formats.push_back(row.format);
  for (const char* name : {"e2m1", "e8m19", "e5m13"}) formats.push_back(ParseFormat(name).format);
  return formats;
}

// Values whose exponents spread around that of the format, so that sums round, cancel, underflow
// and overflow; some are special.
class ValueSource {
 public:
  explicit ValueSource(uint32_t seed) : engine_(seed) {}

  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(engine_() % bound); }

  std::vector<float> Make(size_t count, const Format& f) {
    const int bias = f.bias;
    const int center = static_cast<int>(Below(static_cast<uint32_t>(2 * bias + 2))) - bias;
    const uint32_t width = 1 + Below(40);
    std::vector<float> values;
    for (size_t i = 0; i < count; ++i) {
      const int exponent = std::clamp(center + static_cast<int>(Below(width)), -160, 127);
      const double fraction = 1 + static_cast<double>(engine_() >> 8) * 0x1p-24;
      const double sign = Below(3) == 0 ? -1 : 1;
      values.push_back(static_cast<float>(sign * std::ldexp(fraction, exponent)));
      if (Below(60) == 0) values.back() = -0.0f;
      if (i > 0 && Below(30) == 0) values.back() = -values[i - 1];
    }
    if (count > 0 && Below(20) == 0) values[Below(static_cast<uint32_t>(count))] = special_;
    return values;
  }
  void SetSpecial(float special) { special_ = special; }

 private:
  std::mt19937 engine_;
  float special_ = HUGE_VALF;
};

AccumulationOptions RandomOptions(ValueSource& source, const Format& format, Rounding rounding) {
  const Conversion conversion = {
      format, rounding, source.Below(4) == 0 ? Overflow::kSaturate : Overflow::kInfinity,
      source.Below(4) == 0 ? Subnormals::kFlushToZero : Subnormals::kKeep};
  const Precision narrow = FormatPrecision(conversion);
  const Precision wide = kFloat32Precision;
  AccumulationOptions options;
  options.inputs = source.Below(3) == 0 ? wide : narrow;
  options.accumulator = source.Below(6) == 0 ? wide : narrow;
  options.combiner = source.Below(2) == 0 ? wide : narrow;
  const Precision terms[] = {kExactPrecision, wide, narrow};
  options.terms = terms[source.Below(3)];
  const uint64_t chunks[] = {1, 3, 8, 16, kOneChunk};
  options.chunk_length = chunks[source.Below(5)];
  options.random = {source.Below(1000), source.Below(1000)};
  return options;
}

void ExpectSame(float expected, float got) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(got)) << got;
    return;
  }
  EXPECT_EQ(std::bit_cast<uint32_t>(expected), std::bit_cast<uint32_t>(got))
      << expected << " " << got;
}

void ExpectSame(const OracleSums& expected, const Accumulated& got) {
  ASSERT_EQ(got.values.size(), 1u);
  ExpectSame(static_cast<float>(expected.sum), got.values.front());
  EXPECT_EQ(expected.counts, got.counts);
}

std::vector<uint64_t> IndicesFrom(uint64_t first, size_t count, uint64_t stride) {
  std::vector<uint64_t> indices;
  for (size_t i = 0; i < count; ++i) indices.push_back(first + i * stride);
  return indices;
}

// Calls body(options, source, format) many times for every format and rounding mode.
template <class Body>
void ForManyOptions(int repetitions, const Body& body) {
  uint32_t seed = 1;
  for (const Format& format : FormatsOfSums()) {
    for (const Rounding rounding : kRoundings) {
      for (int i = 0; i < repetitions; ++i) {
        ValueSource source(++seed);
        if (i % 2 == 0) source.SetSpecial(std::nanf(""));
        SCOPED_TRACE(seed);
        body(RandomOptions(source, format, rounding), source, format);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(AccumulateOracle, SumsEqualExactArithmeticRoundedOnce) {
  ForManyOptions(30, [](const AccumulationOptions& o, ValueSource& source, const Format& f) {
    const std::vector<float> values = source.Make(source.Below(50), f);
    std::vector<OracleValue> terms;
    for (const OracleValue& input : OracleInputs(values, o, 0)) {
      terms.push_back(OracleElement(input));
    }
    ExpectSame(OracleSum(terms, IndicesFrom(0, terms.size(), 1), 0, o),
               Sum(values, std::span(&o, 1))[0]);
  });
}

TEST(AccumulateOracle, DotProductsEqualExactArithmeticRoundedOnce) {
  ForManyOptions(30, [](const AccumulationOptions& o, ValueSource& source, const Format& f) {
    const size_t count = source.Below(50);
    const std::vector<float> a = source.Make(count, f), b = source.Make(count, f);
    const std::vector<OracleValue> x = OracleInputs(a, o, 0), y = OracleInputs(b, o, 1);
    std::vector<OracleValue> terms, squares;
    for (size_t i = 0; i < count; ++i) {
      terms.push_back(OracleProduct(x[i], y[i], i, o));
      squares.push_back(OracleProduct(x[i], x[i], i, o));
    }
    const std::vector<uint64_t> indices = IndicesFrom(0, count, 1);
    ExpectSame(OracleSum(terms, indices, 0, o), Dot(a, b, std::span(&o, 1))[0]);
    ExpectSame(OracleSum(squares, indices, 0, o), SumOfSquares(a, std::span(&o, 1))[0]);
  });
}

TEST(AccumulateOracle, AxisSumsEqualExactArithmeticRoundedOnce) {
  ForManyOptions(10, [](const AccumulationOptions& o, ValueSource& source, const Format& f) {
    const AxisShape shape = {1 + source.Below(3), source.Below(20), 1 + source.Below(4)};
    const std::vector<float> values = source.Make(shape.outer * shape.length * shape.inner, f);
    const std::vector<OracleValue> inputs = OracleInputs(values, o, 0);
    const Accumulated sums = SumAxis(values, shape, std::span(&o, 1)).front();
    ASSERT_EQ(sums.values.size(), shape.outer * shape.inner);
    const uint64_t chunks = (shape.length + std::min(o.chunk_length, uint64_t{1000}) - 1) /
                            std::min(o.chunk_length, uint64_t{1000});
    AdditionCounts counts;
    for (uint64_t output = 0; output < sums.values.size(); ++output) {
      const uint64_t first =
          output / shape.inner * shape.length * shape.inner + output % shape.inner;
      const std::vector<uint64_t> indices = IndicesFrom(first, shape.length, shape.inner);
      std::vector<OracleValue> terms;
      for (const uint64_t index : indices) terms.push_back(OracleElement(inputs[index]));
      const OracleSums expected = OracleSum(terms, indices, output * chunks, o);
      ExpectSame(static_cast<float>(expected.sum), sums.values[output]);
      counts.Merge(expected.counts);
    }
    EXPECT_EQ(counts, sums.counts);
  });
}

TEST(AccumulateOracle, MatrixProductsEqualExactArithmeticRoundedOnce) {
  ForManyOptions(10, [](const AccumulationOptions& o, ValueSource& source, const Format& f) {
    const MatMulShape shape = {1 + source.Below(3), source.Below(20), 1 + source.Below(4)};
    const std::vector<float> a = source.Make(shape.rows * shape.depth, f);
    const std::vector<float> b = source.Make(shape.depth * shape.columns, f);
    const std::vector<OracleValue> x = OracleInputs(a, o, 0), y = OracleInputs(b, o, 1);
    const Accumulated product = MatMul(a, b, shape, std::span(&o, 1)).front();
    ASSERT_EQ(product.values.size(), shape.rows * shape.columns);
    const uint64_t length = std::min(o.chunk_length, uint64_t{1000});
    const uint64_t chunks = (shape.depth + length - 1) / length;
    AdditionCounts counts;
    for (uint64_t output = 0; output < product.values.size(); ++output) {
      const std::vector<uint64_t> indices = IndicesFrom(output * shape.depth, shape.depth, 1);
      std::vector<OracleValue> terms;
      for (uint64_t i = 0; i < shape.depth; ++i) {
        terms.push_back(OracleProduct(x[output / shape.columns * shape.depth + i],
                                      y[i * shape.columns + output % shape.columns], indices[i],
                                      o));
      }
      const OracleSums expected = OracleSum(terms, indices, output * chunks, o);
      ExpectSame(static_cast<float>(expected.sum), product.values[output]);
      counts.Merge(expected.counts);
    }
    EXPECT_EQ(counts, product.counts);
  });
}

template <Rounding kRounding>
void ExpectTheCodec(const Conversion& conversion) {
  const CodecSpec spec = MakeCodecSpec(conversion);
  const FormatRounder<kRounding> rounder(conversion);
  std::mt19937 engine(7);
  for (int i = 0; i < 100000; ++i) {
    const uint32_t bits = static_cast<uint32_t>(engine()), random = static_cast<uint32_t>(engine());
    const EncodeResult code = EncodeWith<kRounding>(spec, bits, random);
    const Rounded got = rounder.Round(static_cast<double>(std::bit_cast<float>(bits)), random);
    ExpectSame(std::bit_cast<float>(Decode(spec, code.code)), got.value);
    EXPECT_EQ(code.overflows, got.overflows) << std::hex << bits << " " << random;
    if (testing::Test::HasFailure()) return;
  }
}

TEST(AccumulateOracle, RoundsFloat32AsTheCodecDoes) {
  for (const Format& format : FormatsOfSums()) {
    for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
      for (const Subnormals subnormals : {Subnormals::kKeep, Subnormals::kFlushToZero}) {
        const auto with = [&](Rounding r) { return Conversion{format, r, overflow, subnormals}; };
        ExpectTheCodec<Rounding::kNearestEven>(with(Rounding::kNearestEven));
        ExpectTheCodec<Rounding::kTowardZero>(with(Rounding::kTowardZero));
        ExpectTheCodec<Rounding::kNearestAway>(with(Rounding::kNearestAway));
        ExpectTheCodec<Rounding::kTowardPositive>(with(Rounding::kTowardPositive));
        ExpectTheCodec<Rounding::kTowardNegative>(with(Rounding::kTowardNegative));
        ExpectTheCodec<Rounding::kStochastic>(with(Rounding::kStochastic));
      }
    }
  }
}

}  // namespace
}  // namespace dlsim
