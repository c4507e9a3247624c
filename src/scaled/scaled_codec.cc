// SPDX-License-Identifier: Apache-2.0
#include "dlsim/scaled_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "dlsim/codec.h"
#include "dlsim/convert.h"
#include "dlsim/error.h"
#include "src/base/float_environment.h"
#include "src/scaled/group_scale.h"

namespace dlsim {
namespace {

// Elements that are converted at once, at least.
constexpr size_t kBatch = 4096;

uint32_t MagnitudeBits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value) & ~codec::kSignBit;
  return bits > codec::kInfinityBits ? 0 : bits;
}

// Rows of a matrix that have the same scales: one for BlockAxis::kRow, those of a block for
// kColumn. Groups of a row lie side by side, each as wide as `width`.
class Bands {
 public:
  Bands(const ScaledFormat& format, uint64_t rows, uint64_t columns, BlockAxis axis)
      : rows_(rows), columns_(columns), height_(rows), width_(columns) {
    if (format.sharing == Sharing::kTensor) return;
    const bool along_rows = axis == BlockAxis::kRow;
    (along_rows ? height_ : width_) = 1;
    if (format.sharing == Sharing::kBlock) (along_rows ? width_ : height_) = format.block;
  }

  uint64_t height() const { return height_; }
  uint64_t width() const { return width_; }
  uint64_t groups() const { return columns_ == 0 ? 0 : (columns_ + width_ - 1) / width_; }

  // Calls visit(first_row, last_row) for each.
  template <class Visit>
  void ForEach(const Visit& visit) const {
    for (uint64_t row = 0; row < rows_; row += height_) {
      visit(row, std::min(rows_, row + height_));
    }
  }

 private:
  uint64_t rows_, columns_, height_, width_;
};

// Finds the largest magnitude of each group in rows of a matrix.
void FindLargest(const MatrixView& matrix, const Bands& bands, uint64_t first, uint64_t last,
                 std::span<uint32_t> largest) {
  std::ranges::fill(largest, 0);
  for (uint64_t row = first; row < last; ++row) {
    const float* const values = matrix.values.data() + row * matrix.columns;
    if (bands.width() == 1) {
      for (uint64_t c = 0; c < matrix.columns; ++c) {
        largest[c] = std::max(largest[c], MagnitudeBits(values[c]));
      }
      continue;
    }
    for (size_t g = 0; g < largest.size(); ++g) {
      const uint64_t begin = g * bands.width();
      const uint64_t end = std::min(matrix.columns, begin + bands.width());
      uint32_t most = largest[g];
      for (uint64_t c = begin; c < end; ++c) most = std::max(most, MagnitudeBits(values[c]));
      largest[g] = most;
    }
  }
}

// The factors of a row's elements, by column.
struct Factors {
  std::vector<float> encode, decode;

  explicit Factors(uint64_t columns) : encode(columns), decode(columns) {}

  void Set(const Bands& bands, size_t group, const GroupScale& scale) {
    const uint64_t begin = group * bands.width();
    const uint64_t end = std::min<uint64_t>(encode.size(), begin + bands.width());
    std::fill(encode.data() + begin, encode.data() + end, scale.encode);
    std::fill(decode.data() + begin, decode.data() + end, scale.decode);
  }
};

// Elements of whole rows.
struct Batch {
  std::vector<float> values, scaled, decode, decoded;
  std::vector<uint16_t> codes;

  void AddRow(const float* row, const Factors& factors) {
    const size_t columns = factors.encode.size(), begin = values.size();
    values.insert(values.end(), row, row + columns);
    decode.insert(decode.end(), factors.decode.begin(), factors.decode.end());
    scaled.resize(begin + columns);
    float* const out = scaled.data() + begin;
    for (size_t c = 0; c < columns; ++c) out[c] = row[c] * factors.encode[c];
  }

  void Convert(const Format& element) {
    codes.resize(scaled.size());
    decoded.resize(scaled.size());
    EncodeArray({.conversion = {element, Rounding::kNearestEven, Overflow::kSaturate}}, scaled,
                codes);
    DecodeArray(element, codes, decoded);
    for (size_t i = 0; i < decoded.size(); ++i) decoded[i] *= decode[i];
  }

  void Clear() { values.clear(), scaled.clear(), decode.clear(); }
};

// Converts a matrix. Calls on_scale(scale) for each group in order, and on_batch(batch) for its
// elements in memory order.
template <class OnScale, class OnBatch>
void Convert(const ScaledFormat& format, const Format& element, const MatrixView& matrix,
             BlockAxis axis, std::optional<float> given, const OnScale& on_scale,
             const OnBatch& on_batch) {
  const DefaultFloatEnvironment environment;
  if (matrix.values.size() != matrix.rows * matrix.columns) {
    throw UsageError("matrix", "size and shape differ",
                     std::to_string(matrix.rows * matrix.columns),
                     std::to_string(matrix.values.size()));
  }
  const Bands bands(format, matrix.rows, matrix.columns, axis);
  const bool of_tensor = format.scale == ScaleType::kFp8;
  const GroupScales scales(format, element, of_tensor ? LargestMagnitude(matrix.values) : 0);
  std::vector<uint32_t> largest(bands.groups());
  Factors factors(matrix.columns);
  Batch batch;
  const auto flush = [&] {
    batch.Convert(element);
    on_batch(batch);
    batch.Clear();
  };
  bands.ForEach([&](uint64_t first, uint64_t last) {
    if (!given) FindLargest(matrix, bands, first, last, largest);
    for (size_t g = 0; g < largest.size(); ++g) {
      const GroupScale scale =
          given ? Float32Scale(*given) : scales.Of(std::bit_cast<float>(largest[g]));
      on_scale(scale);
      factors.Set(bands, g, scale);
    }
    for (uint64_t row = first; row < last; ++row) {
      batch.AddRow(matrix.values.data() + row * matrix.columns, factors);
      if (batch.values.size() >= kBatch) flush();
    }
  });
  if (!batch.values.empty()) flush();
}

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
void Count(const CodecSpec& spec, float max, float value, float scaled, uint32_t code,
           float decoded, TensorStats& stats) {
  ++stats.elements;
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
  stats.overflow += std::fabs(scaled) > max;
  if (value == 0) {
    ++stats.zeros;
  } else if (decoded == 0) {
    ++stats.underflow;
    stats.underflow_sum_of_squares += input * input;
  } else {
    stats.subnormal += Classify(spec, code) == CodeClass::kSubnormal;
  }
}

}  // namespace

float LargestMagnitude(std::span<const float> values) {
  uint32_t largest = 0;
  for (const float value : values) largest = std::max(largest, MagnitudeBits(value));
  return std::bit_cast<float>(largest);
}

ScaledCodes EncodeScaled(const ScaledFormat& format, const Format& element,
                         const MatrixView& matrix, BlockAxis axis, std::optional<float> scale) {
  ScaledCodes result;
  result.codes.reserve(matrix.values.size());
  Convert(
      format, element, matrix, axis, scale,
      [&](const GroupScale& group) { result.scales.push_back(group.code); },
      [&](const Batch& batch) {
        for (const uint16_t code : batch.codes) result.codes.push_back(static_cast<uint8_t>(code));
      });
  if (format.scale == ScaleType::kFp8) {
    result.tensor_scale =
        GroupScales(format, element, LargestMagnitude(matrix.values)).tensor_scale();
  }
  return result;
}

void DecodeScaled(const ScaledFormat& format, const Format& element, const ScaledCodes& codes,
                  uint64_t rows, uint64_t columns, BlockAxis axis, std::span<float> values) {
  const DefaultFloatEnvironment environment;
  const Bands bands(format, rows, columns, axis);
  const uint64_t band_count = columns == 0 ? 0 : (rows + bands.height() - 1) / bands.height();
  const uint64_t elements = rows * columns, groups = band_count * bands.groups();
  if (codes.codes.size() != elements || values.size() != elements ||
      codes.scales.size() != groups) {
    throw UsageError(
        "codes", "size and shape differ",
        std::to_string(elements) + " codes and values, " + std::to_string(groups) + " scales",
        std::to_string(codes.codes.size()) + ", " + std::to_string(values.size()) + ", " +
            std::to_string(codes.scales.size()));
  }
  GroupScales scales(format, element, 0);
  scales.set_tensor_scale(codes.tensor_scale);
  const CodecSpec spec = MakeCodecSpec({.format = element});
  for (uint64_t row = 0; row < rows; ++row) {
    for (uint64_t c = 0; c < columns; ++c) {
      const uint64_t i = row * columns + c;
      const uint64_t group = row / bands.height() * bands.groups() + c / bands.width();
      const float decoded = std::bit_cast<float>(Decode(spec, codes.codes[i]));
      values[i] = decoded * scales.OfCode(codes.scales[group]).decode;
    }
  }
}

ScaledStats MeasureScaled(const ScaledFormat& format, const Format& element,
                          const MatrixView& matrix, BlockAxis axis, MatrixChannels channels,
                          std::optional<float> scale) {
  ScaledStats result;
  result.min_scale = std::numeric_limits<float>::infinity();
  const CodecSpec spec = MakeCodecSpec({.format = element});
  const float max = static_cast<float>(MaxFinite(element));
  const bool by_rows = channels == MatrixChannels::kRows;
  std::vector<ChannelSquares> squares(by_rows ? matrix.rows : matrix.columns);
  uint64_t row = 0, column = 0;
  Convert(
      format, element, matrix, axis, scale,
      [&](const GroupScale& group) {
        result.min_scale = std::fmin(result.min_scale, group.encode);
        result.max_scale = std::fmax(result.max_scale, group.encode);
      },
      [&](const Batch& batch) {
        for (size_t i = 0; i < batch.values.size(); ++i) {
          const float value = batch.values[i], decoded = batch.decoded[i];
          Count(spec, max, value, batch.scaled[i], batch.codes[i], decoded, result.stats);
          if (std::isfinite(value) && std::isfinite(decoded)) {
            const double error = double{decoded} - double{value};
            ChannelSquares& channel = squares[by_rows ? row : column];
            channel.inputs += double{value} * double{value};
            channel.errors += error * error;
          }
          if (++column == matrix.columns) column = 0, ++row;
        }
      });
  AddChannels(squares, result);
  if (result.max_scale == 0) result.min_scale = 0;
  return result;
}

}  // namespace dlsim
