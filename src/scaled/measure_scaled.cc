// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "dlsim/codec.h"
#include "dlsim/scaled_codec.h"
#include "src/base/float_environment.h"
#include "src/scaled/element_kernels.h"
#include "src/scaled/stretches.h"

namespace dlsim {
namespace {

// Sums of squares of the inputs and of the errors of a channel.
struct ChannelSquares {
  double inputs = 0, errors = 0;
};

void AddChannels(std::span<const ChannelSquares> channels, ScaledStats& into) {
  for (const ChannelSquares& channel : channels) {
    if (channel.inputs == 0) continue;
    const double harm = channel.errors / channel.inputs;
    ++into.channels;
    into.mean_channel_harm += harm;
    into.worst_channel_harm = std::fmax(into.worst_channel_harm, harm);
  }
  if (into.channels > 0) into.mean_channel_harm /= static_cast<double>(into.channels);
}

// Counts one element.
void Count(const CodecSpec& spec, float value, float scaled, uint32_t code, float decoded,
           TensorStats& stats) {
  stats.nonfinite_outputs += !std::isfinite(decoded);
  if (!std::isfinite(value)) {
    ++(std::isnan(value) ? stats.nan : stats.inf);
    return;
  }
  const double input = value, output = decoded;
  stats.absmax = std::fmax(stats.absmax, std::fabs(value));
  stats.sum_of_squares += input * input;
  stats.quantized_sum_of_squares += output * output;
  if (std::isfinite(decoded)) stats.error_sum_of_squares += (output - input) * (output - input);
  stats.overflow += std::fabs(scaled) > std::bit_cast<float>(spec.plain_max_bits);
  if (value == 0) {
    ++stats.zeros;
  } else if (decoded == 0) {
    ++stats.underflow;
    stats.underflow_sum_of_squares += input * input;
  } else {
    stats.subnormal += Classify(spec, code) == CodeClass::kSubnormal;
  }
}

// Returns the square where the result is zero, else 0: without a branch, which nobody could
// predict.
double IfZero(float decoded, double square) {
  const uint64_t is_zero = std::bit_cast<uint32_t>(decoded) << 1 == 0 ? 1 : 0;
  return std::bit_cast<double>(std::bit_cast<uint64_t>(square) & (0 - is_zero));
}

// Adds up what becomes of a matrix, in memory order.
class MatrixSums {
 public:
  MatrixSums(const CodecSpec& spec, const MatrixView& matrix, MatrixChannels channels,
             TensorStats& stats)
      : spec_(spec),
        matrix_(matrix),
        by_rows_(channels == MatrixChannels::kRows),
        stats_(stats),
        squares_(by_rows_ ? matrix.rows : matrix.columns) {
    stats_.elements = matrix.values.size();
  }

  void Add(const Stretch& stretch) {
    const float* const values = matrix_.values.data() + stretch.first;
    decoded_.resize(stretch.count);
    const ElementCounts counts = MeasureElements(spec_, stretch, values, decoded_.data());
    if (!counts.finite) return AddOneByOne(stretch, values);
    stats_.zeros += counts.zeros;
    stats_.underflow += counts.vanished - counts.zeros;
    stats_.subnormal += counts.subnormal;
    stats_.overflow += counts.clipped;
    stats_.absmax = std::fmax(stats_.absmax, counts.absmax);
    const bool vanished = counts.vanished > counts.zeros;
    ForEachPart(stretch, [&](size_t begin, size_t count, size_t row, size_t column) {
      const auto add = vanished ? &MatrixSums::AddSquares<true> : &MatrixSums::AddSquares<false>;
      (this->*add)(values + begin, &decoded_[begin], count, by_rows_ ? row : column);
    });
  }

  const std::vector<ChannelSquares>& squares() const { return squares_; }

 private:
  // Calls part(place in the stretch, count, row, first column) for its parts of rows.
  template <class Part>
  void ForEachPart(const Stretch& stretch, const Part& part) {
    for (size_t begin = 0; begin < stretch.count;) {
      const size_t row = (stretch.first + begin) / matrix_.columns;
      const size_t column = (stretch.first + begin) % matrix_.columns;
      const size_t count = std::min(stretch.count - begin, matrix_.columns - column);
      part(begin, count, row, column);
      begin += count;
    }
  }

  // Adds part of a row, which lies in one channel or in as many as it has elements. Sums are not
  // changed by zeros.
  template <bool kVanished>
  void AddSquares(const float* values, const float* decoded, size_t count, size_t channel) {
    TensorStats sums = stats_;
    ChannelSquares of_row;
    if (by_rows_) of_row = squares_[channel];
    for (size_t i = 0; i < count; ++i) {
      const double input = values[i], output = decoded[i];
      const double square = input * input, error = (output - input) * (output - input);
      sums.sum_of_squares += square;
      sums.quantized_sum_of_squares += output * output;
      sums.error_sum_of_squares += error;
      if constexpr (kVanished) sums.underflow_sum_of_squares += IfZero(decoded[i], square);
      ChannelSquares& squares = by_rows_ ? of_row : squares_[channel + i];
      squares.inputs += square;
      squares.errors += error;
    }
    if (by_rows_) squares_[channel] = of_row;
    stats_ = sums;
  }

  // By the scalar reference.
  void AddOneByOne(const Stretch& stretch, const float* values) {
    for (size_t i = 0; i < stretch.count; ++i) {
      const float value = values[i], scaled = value * stretch.encode[i];
      const uint32_t code =
          EncodeWith<Rounding::kNearestEven>(spec_, std::bit_cast<uint32_t>(scaled), 0).code;
      const float decoded = std::bit_cast<float>(Decode(spec_, code)) * stretch.decode[i];
      Count(spec_, value, scaled, code, decoded, stats_);
      if (!std::isfinite(value) || !std::isfinite(decoded)) continue;
      const size_t row = (stretch.first + i) / matrix_.columns;
      const size_t column = (stretch.first + i) % matrix_.columns;
      const double error = double{decoded} - double{value};
      ChannelSquares& squares = squares_[by_rows_ ? row : column];
      squares.inputs += double{value} * double{value};
      squares.errors += error * error;
    }
  }

  const CodecSpec& spec_;
  const MatrixView& matrix_;
  bool by_rows_;
  TensorStats& stats_;
  std::vector<ChannelSquares> squares_;
  std::vector<float> decoded_;
};

}  // namespace

void ScaledStats::Merge(const ScaledStats& other) {
  if (other.stats.elements == 0) return;
  min_scale = stats.elements == 0 ? other.min_scale : std::fmin(min_scale, other.min_scale);
  max_scale = std::fmax(max_scale, other.max_scale);
  mean_channel_harm = std::fmax(mean_channel_harm, other.mean_channel_harm);
  worst_channel_harm = std::fmax(worst_channel_harm, other.worst_channel_harm);
  channels = std::max(channels, other.channels);
  stats.Merge(other.stats);
}

void ScaledLoss::Merge(const ScaledLoss& other) {
  for (size_t axis = 0; axis < by_axis.size(); ++axis) by_axis[axis].Merge(other.by_axis[axis]);
}

ScaledStats MeasureScaled(const ScaledFormat& format, const Format& element,
                          const MatrixView& matrix, BlockAxis axis, MatrixChannels channels,
                          std::optional<float> scale) {
  const DefaultFloatEnvironment environment;
  ScaledStats result;
  result.min_scale = std::numeric_limits<float>::infinity();
  const Bands bands(format, matrix.rows, matrix.columns, axis);
  const ScaleFinder finder(format, element, matrix, bands, scale);
  const CodecSpec spec = MakeElementSpec(element);
  MatrixSums sums(spec, matrix, channels, result.stats);
  ScaleFinder::OfBand found;
  const auto set = [&](uint64_t band, Factors& factors) {
    finder.Find(band, found);
    factors.Set(found.scales);
    for (const GroupScale& group : found.scales) {
      result.min_scale = std::fmin(result.min_scale, group.encode);
      result.max_scale = std::fmax(result.max_scale, group.encode);
    }
  };
  ForEachStretch(bands, 0, bands.count(), set, [&](const Stretch& stretch) { sums.Add(stretch); });
  AddChannels(sums.squares(), result);
  if (result.max_scale == 0) result.min_scale = 0;
  return result;
}

}  // namespace dlsim
