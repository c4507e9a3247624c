// SPDX-License-Identifier: Apache-2.0
#include "dlsim/table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "src/table/exact_sum.h"
#include "src/table/tabulate.h"
#include "tests/support/measure_reference.h"
#include "tests/support/on_target.h"

namespace dlsim {
namespace {

struct Data {
  std::string name;
  std::vector<float> values;
};

// Values as gradients have them, and such as rounding finds hard.
const std::vector<Data>& AllData() {
  static const std::vector<Data> all = [] {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const auto make = [&](std::string name, size_t count, const auto& value) {
      Data data = {std::move(name), std::vector<float>(count)};
      for (float& v : data.values) v = value();
      return data;
    };
    const auto bits = [](uint32_t pattern) { return std::bit_cast<float>(pattern); };
    const auto near_ends = [&] {
      // Ties, and what rounds up to the next binade.
      const auto below = [&](uint32_t end) { return static_cast<uint32_t>(random() % end); };
      const uint32_t exponent = 80 + below(60), kind = below(3);
      const uint32_t mantissa = kind == 0   ? 0x7FFFFF - below(70000)
                                : kind == 1 ? below(3) << below(23)
                                            : below(0x800000);
      return bits(exponent << 23 | (mantissa & 0x7FFFFF) | below(2) << 31);
    };
    return std::vector<Data>{
        make("normal", 30000, [&] { return normal(random) * 1e-5f; }),
        make("lognormal", 30000, [&] { return std::exp(normal(random) * 8 - 20); }),
        make("bf16", 9000,
             [&] { return bits(std::bit_cast<uint32_t>(normal(random)) & 0xFFFF0000); }),
        make("zeros", 20000, [&] { return random() % 10 == 0 ? normal(random) : 0.0f; }),
        make("ends", 20000, near_ends),
        make("any", 20000, [&] { return bits(static_cast<uint32_t>(random())); }),
        make("subnormal", 5000, [&] { return bits(static_cast<uint32_t>(random() % 0x1000000)); }),
        make("negative", 20000, [&] { return bits(static_cast<uint32_t>(random() | 1u << 31)); }),
        make("few", 300, near_ends),
        make("one", 1, [&] { return 3.0f; }),
        make("none", 0, [&] { return 0.0f; }),
    };
  }();
  return all;
}

float LargestOf(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) {
    if (std::isfinite(value)) largest = std::max(largest, value);
  }
  return largest;
}

TensorTable ByDefinition(std::span<const float> values) {
  TableSums sums = {};
  for (const float value : values) sums.Add(value);
  return TableOf(sums);
}

class OnTargetTable : public OnTarget {};

TEST_P(OnTargetTable, EqualsItsDefinitionAtAnyLengthAndAlignment) {
  std::mt19937 random(2);
  for (const Data& data : AllData()) {
    for (int i = 0; i < 12; ++i) {
      const size_t most = data.values.size();
      const size_t begin = most == 0 ? 0 : random() % most;
      const std::span<const float> values =
          std::span(data.values)
              .subspan(begin, i == 0 ? most - begin : random() % (most - begin + 1));
      Tabulator tabulator;
      tabulator.Add(values);
      const TensorTable table = tabulator.Take();
      const TensorTable expected = ByDefinition(values);
      EXPECT_EQ(table.zeros, expected.zeros) << data.name;
      EXPECT_EQ(table.nan, expected.nan) << data.name;
      EXPECT_EQ(table.inf, expected.inf) << data.name;
      EXPECT_EQ(table.absmax, expected.absmax) << data.name;
      EXPECT_EQ(table.largest, LargestOf(values)) << data.name;
      EXPECT_EQ(expected.largest, LargestOf(values)) << data.name;
      if (values.size() > TensorTable::kMostValues) {
        EXPECT_TRUE(table.binades == expected.binades) << data.name << " " << values.size();
      }
    }
  }
}

TEST(Table, FewValuesAreSortedByMagnitude) {
  std::mt19937 random(9);
  for (size_t count = 0; count <= TensorTable::kMostValues; count += 1 + count / 7) {
    for (const uint32_t kinds : {1u, 3u, 1u << 23}) {  // with many that are equal, and few
      std::vector<float> values(count);
      for (float& value : values) {
        value = static_cast<float>(1 + random() % kinds) * (random() % 2 == 0 ? 1 : -1);
      }
      std::vector<float> sorted = values;
      std::ranges::sort(
          sorted, {}, [](float value) { return std::pair(std::fabs(value), std::signbit(value)); });
      EXPECT_EQ(Tabulate(values).values, sorted) << count;
    }
  }
}

TEST_P(OnTargetTable, MagnitudesAreThoseOfTheFiniteValues) {
  for (const Data& data : AllData()) {
    uint32_t largest = 0;
    std::vector<uint32_t> maxima(data.values.size(), 7), expected = maxima;
    for (size_t i = 0; i < expected.size(); ++i) {
      if (!std::isfinite(data.values[i])) continue;
      const uint32_t magnitude = std::bit_cast<uint32_t>(std::fabs(data.values[i]));
      largest = std::max(largest, magnitude);
      expected[i] = std::max(expected[i], magnitude);
    }
    RaiseMagnitudes(data.values, maxima.data());
    EXPECT_EQ(maxima, expected) << data.name;
    EXPECT_EQ(LargestBits(data.values), largest) << data.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, OnTargetTable, testing::ValuesIn(SupportedSimdTargets()));

// Pieces of any size, added in any order, and with any number of threads.
TEST(Table, PiecesAddUp) {
  std::mt19937 random(3);
  for (const Data& data : AllData()) {
    const TensorTable whole = Tabulate(data.values);
    std::vector<TensorTable> pieces;
    for (size_t begin = 0; begin < data.values.size();) {
      const size_t count = std::min<size_t>(data.values.size() - begin, 1 + random() % 3000);
      pieces.push_back(Tabulate(std::span(data.values).subspan(begin, count)));
      begin += count;
    }
    std::ranges::shuffle(pieces, random);
    TensorTable sum;
    for (const TensorTable& piece : pieces) sum.Add(piece);
    EXPECT_TRUE(sum == whole) << data.name;
  }
}

TEST(Table, ChannelsAddUp) {
  TensorTable a, b;
  a.channels = {{3, 1}, {7, 2}};
  b.channels = {{1, 5}, {7, 1}, {9, 1}};
  a.Add(b);
  const std::vector<std::pair<uint32_t, uint64_t>> expected = {{1, 5}, {3, 1}, {7, 3}, {9, 1}};
  EXPECT_EQ(a.channels, expected);
}

// The counters of the elements, one by one.
TensorStats Elementwise(std::span<const float> values, const Conversion& conversion, float scale) {
  TensorStats stats;
  for (size_t begin = 0; begin < values.size(); begin += kChunkElements) {
    const auto chunk = values.subspan(begin, std::min(kChunkElements, values.size() - begin));
    stats.Merge(MeasureChunkReference(chunk, begin, {conversion, scale}));
  }
  return stats;
}

void ExpectSame(const TensorStats& told, const TensorStats& found, const std::string& what) {
  const auto near = [](double a, double b) { return std::fabs(a - b) <= 1e-12 * std::fabs(b); };
  EXPECT_EQ(told.elements, found.elements) << what;
  EXPECT_EQ(told.zeros, found.zeros) << what;
  EXPECT_EQ(told.nan, found.nan) << what;
  EXPECT_EQ(told.inf, found.inf) << what;
  EXPECT_EQ(told.underflow, found.underflow) << what;
  EXPECT_EQ(told.subnormal, found.subnormal) << what;
  EXPECT_EQ(told.overflow, found.overflow) << what;
  EXPECT_EQ(told.nonfinite_outputs, found.nonfinite_outputs) << what;
  EXPECT_EQ(told.absmax, found.absmax) << what;
  EXPECT_TRUE(near(told.sum_of_squares, found.sum_of_squares)) << what;
  EXPECT_TRUE(near(told.error_sum_of_squares, found.error_sum_of_squares))
      << what << " " << told.error_sum_of_squares << " " << found.error_sum_of_squares;
  EXPECT_TRUE(near(told.underflow_sum_of_squares, found.underflow_sum_of_squares)) << what;
}

TEST(Table, TellsWhatEachElementDoes) {
  size_t asked = 0, told = 0;
  for (const Data& data : AllData()) {
    const TensorTable table = Tabulate(data.values);
    for (const FormatRow& row : kFormats) {
      for (int exponent = -30; exponent <= 40; exponent += 5) {
        for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
          for (const Subnormals subnormals : {Subnormals::kKeep, Subnormals::kFlushToZero}) {
            const Conversion conversion = {row.format, Rounding::kNearestEven, overflow,
                                           subnormals};
            const float scale = std::ldexp(1.0f, exponent);
            const std::optional<TensorStats> stats = Ask(table, conversion, scale);
            ++asked;
            if (!stats) continue;
            ++told;
            ExpectSame(*stats, Elementwise(data.values, conversion, scale),
                       data.name + " " + std::string(row.name) + " 2^" + std::to_string(exponent));
          }
        }
      }
    }
  }
  EXPECT_GT(told, asked * 3 / 5);
}

// fp16, bf16 and cb16 with subnormals and infinity, at scales of 1 and more: always.
TEST(Table, TellsAllOfTheUsualFormats) {
  for (const Data& data : AllData()) {
    const TensorTable table = Tabulate(data.values);
    TableReader reader;
    reader.Open(table);
    for (const Format& format : {kFp16, kBf16, kCb16}) {
      for (int exponent = 0; exponent <= 60; ++exponent) {
        const Conversion conversion = {.format = format};
        const float scale = std::ldexp(1.0f, exponent);
        const std::optional<TensorStats> stats = Ask(table, conversion, scale);
        ASSERT_TRUE(stats.has_value()) << data.name << " 2^" << exponent;
        if (exponent % 15 == 0) {
          ExpectSame(*stats, Elementwise(data.values, conversion, scale), data.name);
        }
        if (stats->overflow == 0) {
          const double error = stats->error_sum_of_squares;
          EXPECT_NEAR(reader.ErrorSquares({{.format = format}, std::ldexp(1.0f, exponent)}), error,
                      1e-13 * error);
        }
      }
    }
  }
}

// Where scales are alike for a table, it tells the same, digit by digit.
TEST(Table, ScalesThatAreAlikeDoTheSame) {
  size_t alike = 0;
  for (const Data& data : AllData()) {
    const TensorTable table = Tabulate(data.values);
    ExponentRange range;
    for (const float value : data.values) {
      if (value == 0 || !std::isfinite(value)) continue;
      range.lowest = std::min(range.lowest, std::ilogb(value));
      range.highest = std::max(range.highest, std::ilogb(value));
    }
    for (const FormatRow& row : kFormats) {
      const Conversion conversion = {.format = row.format};
      for (int exponent = -60; exponent <= 60; ++exponent) {
        const int like = LikeExponent(conversion, exponent, range);
        if (like == exponent) continue;
        ++alike;
        EXPECT_EQ(Ask(table, conversion, std::ldexp(1.0f, exponent)),
                  Ask(table, conversion, std::ldexp(1.0f, like)))
            << data.name << " " << row.name << " 2^" << exponent << " 2^" << like;
      }
    }
  }
  EXPECT_GT(alike, 100u);
}

TEST(Table, CountsMagnitudes) {
  size_t told = 0;
  for (const Data& data : AllData()) {
    const TensorTable table = Tabulate(data.values);
    for (uint64_t bits = 0; bits <= codec::kInfinityBits + 1; bits += 0x200000) {
      for (const uint64_t magnitude : {bits, bits + 1}) {
        const auto count = CountFrom(table, static_cast<uint32_t>(magnitude));
        if (!count) continue;
        ++told;
        EXPECT_EQ(static_cast<std::ptrdiff_t>(*count),
                  std::ranges::count_if(data.values,
                                        [&](float value) {
                                          return (std::bit_cast<uint32_t>(value) &
                                                  ~codec::kSignBit) >= magnitude;
                                        }))
            << data.name << " " << magnitude;
      }
    }
  }
  EXPECT_GT(told, 1000u);
}

TEST(Table, DoesNotTellWhatItCannot) {
  const TensorTable table = Tabulate(AllData().front().values);
  const auto why = [](const Conversion& conversion, float scale) {
    return OutsideTables(conversion, scale);
  };
  EXPECT_EQ(why({.format = kFp16}, 1), std::nullopt);
  EXPECT_EQ(why({.format = kFp16}, 3), NotInTable::kScale);
  EXPECT_EQ(why({.format = kFp16}, -2), NotInTable::kScale);
  EXPECT_EQ(why({.format = kFp16}, 0), NotInTable::kScale);
  EXPECT_EQ(why({.format = kFp16}, std::numeric_limits<float>::infinity()), NotInTable::kScale);
  EXPECT_EQ(why({.format = {5, 11, 15}}, 1), NotInTable::kBits);
  EXPECT_EQ(why({kFp16, Rounding::kTowardPositive}, 1), NotInTable::kRounding);
  EXPECT_EQ(why({kFp16, Rounding::kStochastic}, 1), NotInTable::kRounding);
  EXPECT_FALSE(Ask(table, {kFp16, Rounding::kTowardPositive}, 1).has_value());
  EXPECT_FALSE(Ask(table, {.format = kFp16}, 3).has_value());
}

// A float64 sum of float64 squares errs in its last digits; against long double, whose 64 bits hold
// each square, the exact sum rounded once errs by half a unit at most.
TEST(Table, SumsAreCloserThanAdditionInFloat64) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 100; ++i) {
    std::vector<float> values(2000 + random() % 5000);
    for (float& value : values) value = normal(random) * std::exp(3 * normal(random));
    ExactSum exact;
    double added = 0;
    for (const float value : values) {
      added += double{value} * double{value};
      int exponent = 0;
      const auto m = static_cast<uint64_t>(std::ldexp(std::frexp(std::fabs(value), &exponent), 24));
      exact.Add(uint128_t{m} * m, 2 * (exponent - 24));
    }
    const double sum = Tabulate(values).sum_of_squares;
    EXPECT_EQ(sum, exact.Value());
    EXPECT_LE(std::fabs(sum - exact.Value()), std::fabs(added - exact.Value()));
  }
}

TEST(ExactSum, AddsAndSubtracts) {
  ExactSum sum;
  EXPECT_EQ(sum.Value(), 0);
  sum.Add(1, 200);
  sum.Add(1, -300);
  EXPECT_EQ(sum.Value(), 0x1p200);
  sum.Subtract(1, 200);
  EXPECT_EQ(sum.Value(), 0x1p-300);
  sum.Subtract(3, -300);
  EXPECT_EQ(sum.Value(), -0x1p-299);
}

TEST(ExactSum, RoundsTiesToEven) {
  const auto value = [](uint64_t a, int rest) {
    ExactSum sum;
    sum.Add(a, 0);
    if (rest > 0) sum.Add(1, -100);
    if (rest < 0) sum.Subtract(1, -100);
    return sum.Value();
  };
  const uint64_t tie = (uint64_t{1} << 54) + 2;  // halfway between two doubles
  EXPECT_EQ(value(tie, 0), 0x1p54);
  EXPECT_EQ(value(tie, 1), 0x1p54 + 4);
  EXPECT_EQ(value(tie, -1), 0x1p54);
  EXPECT_EQ(value(tie + 4, 0), 0x1p54 + 8);
  EXPECT_EQ(value(tie + 4, -1), 0x1p54 + 4);
}

}  // namespace
}  // namespace dlsim
