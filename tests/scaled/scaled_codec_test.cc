// SPDX-License-Identifier: Apache-2.0
// Scaled formats against their definitions, computed here in double, and the figures that are known
// of them. tests/python/test_scaled.py compares with torchao and ml_dtypes.
#include "dlsim/scaled_codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "tests/support/double_oracle.h"

namespace dlsim {
namespace {

ScaledFormat Named(std::string_view text) { return ParseScaledFormat(text).format; }

// Normal numbers times 2^-40 to 2^40.
std::vector<float> Values(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values;
  for (size_t i = 0; i < count; ++i) {
    const int exponent = static_cast<int>(random() % 81) - 40;
    values.push_back(std::ldexp(normal(random), i % 3 == 0 ? exponent : 0));
  }
  return values;
}

// Rounds to the element format, saturating.
double RoundTo(const Format& element, double value) {
  return OracleRound({element, Rounding::kNearestEven, Overflow::kSaturate},
                     static_cast<float>(value));
}

std::vector<float> Decoded(const ScaledFormat& format, const MatrixView& matrix, BlockAxis axis) {
  const ScaledCodes codes = EncodeScaled(format, format.forward, matrix, axis);
  std::vector<float> values(matrix.values.size());
  DecodeScaled(format, format.forward, codes, matrix.rows, matrix.columns, axis, values);
  return values;
}

// A block of E8M0 scales by definition: the scale is a power of two.
std::vector<float> DefinedBlock(const ScaledFormat& format, std::span<const float> block) {
  double largest = 0;
  for (const float value : block) largest = std::fmax(largest, std::fabs(double{value}));
  const double max = OracleMax(format.forward);
  int exponent = 0;
  if (format.rule == ScaleRule::kFloor) exponent = std::ilogb(largest) - std::ilogb(max);
  if (format.rule == ScaleRule::kUp) {
    exponent = std::ilogb(largest / max) + (std::exp2(std::ilogb(largest / max)) < largest / max);
  }
  if (format.rule == ScaleRule::kNearest) {
    exponent = static_cast<int>(std::lround(std::log2(largest / max)));
  }
  std::vector<float> decoded;
  for (const float value : block) {
    decoded.push_back(static_cast<float>(RoundTo(format.forward, value * std::exp2(-exponent)) *
                                         std::exp2(exponent)));
  }
  return decoded;
}

TEST(ScaledCodec, BlocksFollowTheirDefinition) {
  const std::vector<float> values = Values(7 * 96, 1);
  for (const std::string name : {"mxfp8", "mxfp6-e2m3", "mxfp6-e3m2", "mxfp4"}) {
    for (const std::string rule : {"floor", "nearest", "up"}) {
      const ScaledFormat format = Named(name + ":rule=" + rule);
      const MatrixView matrix = {values, 7, 96};
      const std::vector<float> decoded = Decoded(format, matrix, BlockAxis::kRow);
      for (size_t begin = 0; begin < values.size(); begin += 32) {
        const std::vector<float> expected =
            DefinedBlock(format, std::span(values).subspan(begin, 32));
        for (size_t i = 0; i < 32; ++i) {
          ASSERT_EQ(decoded[begin + i], expected[i]) << name << " " << rule << " " << begin + i;
        }
      }
    }
  }
}

TEST(ScaledCodec, ColumnsAreRowsOfTheTransposedMatrix) {
  const uint64_t rows = 70, columns = 45;
  const std::vector<float> values = Values(rows * columns, 2);
  std::vector<float> transposed(values.size());
  for (uint64_t r = 0; r < rows; ++r) {
    for (uint64_t c = 0; c < columns; ++c) transposed[c * rows + r] = values[r * columns + c];
  }
  for (const ScaledFormat& format : kScaledFormats) {
    const std::vector<float> by_column =
        Decoded(format, {values, rows, columns}, BlockAxis::kColumn);
    const std::vector<float> by_row = Decoded(format, {transposed, columns, rows}, BlockAxis::kRow);
    for (uint64_t r = 0; r < rows; ++r) {
      for (uint64_t c = 0; c < columns; ++c) {
        ASSERT_EQ(by_column[r * columns + c], by_row[c * rows + r]) << format.name;
      }
    }
  }
}

TEST(ScaledCodec, MeasuresWhatItDecodes) {
  const uint64_t rows = 33, columns = 50;
  std::vector<float> values = Values(rows * columns, 3);
  for (uint64_t c = 0; c < columns; ++c) values[7 * columns + c] = 0;
  for (const ScaledFormat& format : kScaledFormats) {
    for (const BlockAxis axis : {BlockAxis::kRow, BlockAxis::kColumn}) {
      const MatrixView matrix = {values, rows, columns};
      const ScaledStats found =
          MeasureScaled(format, format.forward, matrix, axis, MatrixChannels::kRows);
      const std::vector<float> decoded = Decoded(format, matrix, axis);
      double errors = 0, squares = 0, harm = 0;
      uint64_t lost = 0;
      for (uint64_t r = 0; r < rows; ++r) {
        double row_errors = 0, row_squares = 0;
        for (uint64_t i = r * columns; i < (r + 1) * columns; ++i) {
          const double error = double{decoded[i]} - double{values[i]};
          row_errors += error * error, errors += error * error;
          row_squares += double{values[i]} * values[i], squares += double{values[i]} * values[i];
          lost += values[i] != 0 && decoded[i] == 0;
        }
        if (row_squares > 0) harm += row_errors / row_squares;
      }
      EXPECT_EQ(found.stats.elements, values.size());
      EXPECT_EQ(found.stats.zeros, columns) << format.name;
      EXPECT_EQ(found.stats.underflow, lost) << format.name;
      EXPECT_EQ(found.stats.sum_of_squares, squares);
      EXPECT_EQ(found.stats.error_sum_of_squares, errors) << format.name;
      EXPECT_EQ(found.channels, rows - 1);
      EXPECT_DOUBLE_EQ(found.mean_channel_harm, harm / (rows - 1)) << format.name;
    }
  }
}

// Of the largest value of a block, in the worst case of all significands.
double WorstError(const ScaledFormat& format) {
  double worst = 0;
  for (uint32_t mantissa = 0; mantissa < 1u << 23; mantissa += 1021) {
    std::vector<float> block(32, 0.0f);
    block[5] = std::bit_cast<float>(0x3F800000u | mantissa);
    const std::vector<float> decoded = Decoded(format, {block, 1, 32}, BlockAxis::kRow);
    worst = std::fmax(worst, std::fabs(1 - double{decoded[5]} / block[5]));
  }
  return worst;
}

TEST(ScaledCodec, WorstErrorsOfTheLargestValue) {
  EXPECT_NEAR(WorstError(Named("mxfp8:rule=nearest")), 1 - std::sqrt(0.5), 1e-4);  // 29.29 %
  EXPECT_LE(WorstError(Named("mxfp8:rule=up")), 0.0625);
  EXPECT_GT(WorstError(Named("mxfp8:rule=up")), 0.058);
  EXPECT_NEAR(WorstError(Named("mxfp8:rule=floor")), 0.125, 1e-4);  // 448 of 512
}

TEST(ScaledCodec, RoundingDownClipsASixthOfNormalBlocks) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> values(32 * 20000);
  for (float& value : values) value = normal(random);
  const ScaledFormat floor = Named("mxfp8:rule=floor"), up = Named("mxfp8");
  size_t clipped = 0;
  for (size_t begin = 0; begin < values.size(); begin += 32) {
    const MatrixView block = {std::span(values).subspan(begin, 32), 1, 32};
    const auto count = [&](const ScaledFormat& format) {
      return MeasureScaled(format, format.forward, block, BlockAxis::kRow, MatrixChannels::kRows)
          .stats.overflow;
    };
    clipped += count(floor) > 0;
    ASSERT_EQ(count(up), 0u);
  }
  EXPECT_NEAR(static_cast<double>(clipped) / 20000, 0.166, 0.008);
}

TEST(ScaledCodec, ScalesOfExtremes) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float tiny = std::numeric_limits<float>::denorm_min();
  const ScaledFormat current = Named("fp8-current");
  EXPECT_EQ(ScaleFor(current, kE4m3, 0), 1);
  EXPECT_EQ(ScaleFor(current, kE4m3, infinity), 1);
  EXPECT_EQ(ScaleFor(current, kE4m3, tiny), std::numeric_limits<float>::max());
  EXPECT_EQ(ScaleFor(current, kE4m3, 3), 448.0f / 3);
  EXPECT_EQ(ScaleFor(Named("fp8-current:pow2=1"), kE4m3, 3), 128);
  EXPECT_EQ(ScaleFor(Named("fp8-current:margin=2"), kE4m3, 3), 448.0f / 12);
  for (const ScaledFormat& format : kScaledFormats) {
    for (const float extreme : {0.0f, tiny, infinity, std::nanf(""), 3e38f, 1e-38f}) {
      std::vector<float> values(40, 1.0f);
      values[3] = extreme;
      const ScaledStats found = MeasureScaled(format, format.forward, {values, 1, 40},
                                              BlockAxis::kRow, MatrixChannels::kRows);
      EXPECT_EQ(found.stats.elements, 40u);
      EXPECT_EQ(found.stats.nan, std::isnan(extreme) ? 1u : 0u);
      EXPECT_EQ(found.stats.inf, std::isinf(extreme) ? 1u : 0u);
      EXPECT_TRUE(std::isfinite(found.stats.error_sum_of_squares)) << format.name;
    }
  }
}

std::string ErrorOf(std::string_view text) {
  try {
    ParseScaledFormat(text, "--format");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ScaledFormat, NamesAndOptions) {
  EXPECT_TRUE(NamesScaledFormat("mxfp8:rule=up"));
  EXPECT_FALSE(NamesScaledFormat("fp8-e4m3"));
  const ScaledFormat delayed = Named("fp8-delayed:history=16,decides=most_recent,margin=-1");
  EXPECT_EQ(delayed.delayed->history, 16u);
  EXPECT_EQ(delayed.delayed->decides, FromHistory::kMostRecent);
  EXPECT_EQ(delayed.margin, -1);
  EXPECT_EQ(Named("mxfp8:backward=e5m2").backward, kE5m2);
  EXPECT_EQ(ErrorOf("mxfp8:rule=down"),
            "--format: mxfp8: bad rule, expected floor, even, nearest, up, got 'down'");
  EXPECT_EQ(ErrorOf("mxfp8:margin=1"),
            "--format: mxfp8 has no such option, expected forward, backward, rule, block, got "
            "'margin'");
  EXPECT_EQ(ErrorOf("fp8-delayed:history=0"),
            "--format: fp8-delayed: bad history, expected 1 to 65536, got '0'");
  for (const char* text : {"mxfp8:", "mxfp8:rule", "mxfp8:rule=", "mxfp8:block=1x", "mxfp9",
                           "fp8-current:history=3", "nvfp4:rule=up", "mxfp8:rule=up,"}) {
    EXPECT_NE(ErrorOf(text), "") << text;
  }
}

}  // namespace
}  // namespace dlsim
