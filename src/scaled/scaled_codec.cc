// SPDX-License-Identifier: Apache-2.0
// Matrices in scaled formats: the groups that share scales, these scales, and the elements with
// their factors, which are encoded, decoded or measured stretch by stretch.
#include "dlsim/scaled_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/codec.h"
#include "dlsim/convert.h"
#include "dlsim/error.h"
#include "dlsim/trace.h"
#include "src/base/check.h"
#include "src/base/float_environment.h"
#include "src/base/parallel.h"
#include "src/measure/step_blocks.h"
#include "src/scaled/group_scale.h"

namespace dlsim {

float ScaleFor(const ScaledFormat& format, const Format& element, float largest) {
  return GroupScales(format, element).Float32Of(largest);
}

GroupScales::GroupScales(const ScaledFormat& format, const Format& element, float largest)
    : type_(format.scale),
      rule_(format.rule),
      power_of_two_(format.power_of_two),
      least_(format.least),
      margin_(group_scale::PowerOfTwo(format.margin)),
      max_(static_cast<float>(MaxFinite(element))),
      highest_exponent_(std::ilogb(max_)),
      half_of_last_bit_(uint32_t{1} << (22 - element.mantissa_bits)),
      of_scales_(MakeCodecSpec({kE4m3, Rounding::kNearestEven, Overflow::kSaturate})) {
  const bool from_ratio = rule_ == ScaleRule::kUp || rule_ == ScaleRule::kNearest;
  // The originals do not multiply by 2^127.
  encode_of_zero_ = from_ratio ? 1.0f : group_scale::PowerOfTwo(group_scale::kE8m0Bias - 1);
  if (type_ != ScaleType::kFp8) return;
  const float max_of_both = static_cast<float>(MaxFinite(kE4m3)) * max_;
  tensor_encode_ = group_scale::Smaller(max_of_both / largest, group_scale::kLargestFloat);
  if (tensor_encode_ == 0) tensor_encode_ = 1;
  tensor_decode_ = 1.0f / tensor_encode_;
}

namespace {

Conversion ConversionTo(const Format& element) {
  return {element, Rounding::kNearestEven, Overflow::kSaturate};
}

uint32_t BitsWithoutSign(float value) { return std::bit_cast<uint32_t>(value) & ~codec::kSignBit; }

// Float32 bits of the magnitude of a value; of NaN none.
uint32_t MagnitudeOf(float value) {
  const uint32_t magnitude = BitsWithoutSign(value);
  return magnitude & codec::MaskOf(magnitude <= codec::kInfinityBits);
}

uint32_t LargestMagnitude(std::span<const float> values) {
  uint32_t largest = 0;
  for (const float value : values) largest = codec::Max(largest, MagnitudeOf(value));
  return largest;
}

float LargestOf(std::span<const float> values) {
  return std::bit_cast<float>(LargestMagnitude(values));
}

// The rows of a matrix in bands that have the same scales: those of a block, or one for
// BlockAxis::kRow. Groups of a row lie side by side, each as wide as `width`.
struct Bands {
  Bands(const ScaledFormat& format, uint64_t of_rows, uint64_t of_columns, BlockAxis axis)
      : rows(of_rows), columns(of_columns), is_one_group(format.sharing == Sharing::kTensor) {
    DLSIM_CHECK(format.sharing == Sharing::kBlock || axis != BlockAxis::kBoth);
    const bool in_blocks = format.sharing == Sharing::kBlock;
    const bool along_row = axis == BlockAxis::kRow, along_column = axis == BlockAxis::kColumn;
    if (!is_one_group && !along_row) height = in_blocks ? format.block : std::max(rows, height);
    width = in_blocks ? format.block : std::max(columns, width);
    if (!is_one_group && along_column) width = 1;
    count = columns == 0 ? 0 : (rows + height - 1) / height;
    groups = columns == 0 ? 0 : (columns + width - 1) / width;
  }

  // Groups of the matrix, which may be one for all bands.
  uint64_t all_groups() const {
    return is_one_group ? std::min<uint64_t>(count, 1) : count * groups;
  }
  uint64_t first_group(uint64_t band) const { return is_one_group ? 0 : band * groups; }

  uint64_t rows, columns;
  bool is_one_group;
  uint64_t height = 1, width = 1;
  uint64_t count, groups;  // bands, and groups of each
};

// Elements that are worked on at once: they stay in the first-level cache.
constexpr size_t kStretch = 1024;

// Consecutive elements of a row, and the factors of their groups.
struct Stretch {
  uint64_t row, column;
  size_t first, count;  // in the matrix
  const float* encode;  // multiply values before they are rounded
  const float* decode;  // multiply elements
};

// Goes through bands [first, last) in memory order: find(band, scales) finds the scales of its
// groups, visit(stretch) takes the elements of its rows.
template <class Find, class Visit>
void ForEachStretch(const Bands& bands, uint64_t first, uint64_t last, const Find& find,
                    const Visit& visit) {
  std::vector<GroupScale> scales(bands.groups);
  std::vector<float> encode(bands.columns), decode(bands.columns);
  for (uint64_t band = first; band < last; ++band) {
    find(band, scales);
    for (uint64_t g = 0, c = 0; g < bands.groups; ++g, c += bands.width) {
      const uint64_t count = std::min(bands.width, bands.columns - c);
      std::fill_n(&encode[c], count, scales[g].encode);
      std::fill_n(&decode[c], count, scales[g].decode);
    }
    const uint64_t end = std::min(bands.rows, (band + 1) * bands.height);
    for (uint64_t row = band * bands.height; row < end; ++row) {
      for (uint64_t c = 0; c < bands.columns; c += kStretch) {
        visit(Stretch{row, c, row * bands.columns + c, std::min(kStretch, bands.columns - c),
                      &encode[c], &decode[c]});
      }
    }
  }
}

// Calls body(first band, last band) for parts of a matrix on several threads.
template <class Body>
void ForParts(const Bands& bands, const Body& body) {
  const uint64_t elements = std::max<uint64_t>(1, bands.rows * bands.columns);
  const uint64_t parts = (elements + kBlockElements - 1) / kBlockElements;
  const uint64_t each = std::max<uint64_t>(1, bands.count / parts);
  ParallelFor((bands.count + each - 1) / each,
              [&](size_t part) { body(part * each, std::min(bands.count, (part + 1) * each)); });
}

// Finds the scales of a matrix.
class ScaleFinder {
 public:
  // `given`: the scale of all groups instead. Throws Error if values and shape differ.
  ScaleFinder(const ScaledFormat& format, const Format& element, const MatrixView& matrix,
              const Bands& bands, std::optional<float> given)
      : matrix_(matrix),
        bands_(bands),
        scales_(format, element, format.scale == ScaleType::kFp8 ? LargestOf(matrix.values) : 0) {
    if (matrix.values.size() != matrix.rows * matrix.columns) {
      throw UsageError("matrix", "size and shape differ",
                       std::to_string(matrix.rows * matrix.columns),
                       std::to_string(matrix.values.size()));
    }
    if (given) given_ = Float32Scale(*given);
    if (!given && bands.is_one_group) given_ = scales_.Of(LargestOf(matrix.values));
  }

  void Find(uint64_t band, std::vector<GroupScale>& scales) const {
    if (given_) {
      std::ranges::fill(scales, *given_);
      return;
    }
    std::vector<uint32_t> largest(bands_.groups);
    const uint64_t end = std::min(bands_.rows, (band + 1) * bands_.height);
    for (uint64_t row = band * bands_.height; row < end; ++row) {
      const auto values = matrix_.values.subspan(row * bands_.columns, bands_.columns);
      for (uint64_t g = 0; bands_.width == 1 && g < bands_.groups; ++g) {
        largest[g] = codec::Max(largest[g], MagnitudeOf(values[g]));
      }
      for (uint64_t g = 0; bands_.width > 1 && g < bands_.groups; ++g) {
        const uint64_t begin = g * bands_.width;
        const uint64_t count = std::min(bands_.width, bands_.columns - begin);
        largest[g] = codec::Max(largest[g], LargestMagnitude(values.subspan(begin, count)));
      }
    }
    std::ranges::transform(largest, scales.begin(),
                           [&](uint32_t bits) { return scales_.Of(std::bit_cast<float>(bits)); });
  }

  float tensor_scale() const { return scales_.tensor_scale(); }

 private:
  const MatrixView& matrix_;
  const Bands& bands_;
  GroupScales scales_;
  std::optional<GroupScale> given_;  // or that of the tensor
};

// Encodes the values of a stretch, times their factors.
class StretchEncoder {
 public:
  explicit StretchEncoder(const Format& element) : how_{.conversion = ConversionTo(element)} {}

  std::span<const uint16_t> Encode(const Stretch& stretch, const float* values) {
    for (size_t i = 0; i < stretch.count; ++i) scaled_[i] = values[i] * stretch.encode[i];
    EncodeArray(how_, {scaled_.data(), stretch.count}, std::span(codes_).first(stretch.count));
    return {codes_.data(), stretch.count};
  }
  const float* scaled() const { return scaled_.data(); }

 private:
  ArrayConversion how_;
  std::array<float, kStretch> scaled_;
  std::array<uint16_t, kStretch> codes_;
};

// Decodes elements, times their factors.
void DecodeStretch(const Format& element, const Stretch& stretch, std::span<const uint16_t> codes,
                   std::span<float> values) {
  DecodeArray(element, codes, values);
  for (size_t i = 0; i < stretch.count; ++i) values[i] *= stretch.decode[i];
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

// A stretch of which codes and results are found.
struct Converted {
  std::span<const float> values;
  const float* scaled;
  const uint16_t* codes;
  const float* decoded;
};

// Counts elements without a branch on them, which could hardly be predicted.
void Count(const CodecSpec& spec, const Converted& stretch, TensorStats& stats) {
  const uint32_t code_bits = (codec::kSignBit >> spec.sign_shift) - 1;
  uint32_t zeros = 0, nan = 0, inf = 0, underflow = 0, subnormal = 0, overflow = 0, nonfinite = 0;
  uint32_t absmax = std::bit_cast<uint32_t>(stats.absmax);
  for (size_t i = 0; i < stretch.values.size(); ++i) {
    const uint32_t in = BitsWithoutSign(stretch.values[i]),
                   out = BitsWithoutSign(stretch.decoded[i]);
    const uint32_t scaled = BitsWithoutSign(stretch.scaled[i]);
    const uint32_t finite = in < codec::kInfinityBits, zero = in == 0, vanishes = out == 0;
    const uint32_t small = (stretch.codes[i] & code_bits) < spec.min_normal_code;
    const uint32_t clipped = scaled > spec.max_bits, number = scaled <= codec::kInfinityBits;
    zeros += zero;
    nan += in > codec::kInfinityBits;
    inf += in == codec::kInfinityBits;
    nonfinite += out >= codec::kInfinityBits;
    underflow += finite & ~zero & vanishes;
    subnormal += finite & ~zero & ~vanishes & small;
    overflow += finite & clipped & number;
    absmax = codec::Max(absmax, in & codec::MaskOf(in < codec::kInfinityBits));
  }
  stats.zeros += zeros;
  stats.nan += nan;
  stats.inf += inf;
  stats.nonfinite_outputs += nonfinite;
  stats.underflow += underflow;
  stats.subnormal += subnormal;
  stats.overflow += overflow;
  stats.absmax = std::bit_cast<float>(absmax);
}

// Adds the squares of elements, in memory order; channel(i) is the channel of the i-th.
template <class Channel>
void AddSquares(const Converted& stretch, TensorStats& stats, const Channel& channel) {
  const auto where = [](codec::Mask mask, float value) {
    return double{std::bit_cast<float>(std::bit_cast<uint32_t>(value) & mask)};
  };
  double inputs = stats.sum_of_squares, outputs = stats.quantized_sum_of_squares;
  double errors = stats.error_sum_of_squares, vanished = stats.underflow_sum_of_squares;
  for (size_t i = 0; i < stretch.values.size(); ++i) {
    const float value = stretch.values[i], decoded = stretch.decoded[i];
    const uint32_t out = BitsWithoutSign(decoded);
    const codec::Mask finite = codec::MaskOf(BitsWithoutSign(value) < codec::kInfinityBits);
    const codec::Mask both_finite = finite & codec::MaskOf(out < codec::kInfinityBits);
    const double input = where(finite, value), output = where(finite, decoded);
    const double seen = where(both_finite, value), error = where(both_finite, decoded) - seen;
    const double lost = where(finite & codec::MaskOf(out == 0), value);
    inputs += input * input;
    outputs += output * output;
    errors += error * error;
    vanished += lost * lost;
    ChannelSquares& of_channel = channel(i);
    of_channel.inputs += seen * seen;
    of_channel.errors += error * error;
  }
  stats.sum_of_squares = inputs;
  stats.quantized_sum_of_squares = outputs;
  stats.error_sum_of_squares = errors;
  stats.underflow_sum_of_squares = vanished;
}

}  // namespace

ScaledCodes EncodeScaled(const ScaledFormat& format, const Format& element,
                         const MatrixView& matrix, BlockAxis axis, std::optional<float> scale) {
  const DefaultFloatEnvironment environment;
  const Bands bands(format, matrix.rows, matrix.columns, axis);
  const ScaleFinder finder(format, element, matrix, bands, scale);
  ScaledCodes result;
  result.codes.resize(matrix.values.size());
  result.scales.resize(bands.all_groups());
  result.tensor_scale = finder.tensor_scale();
  ForParts(bands, [&](uint64_t first, uint64_t last) {
    StretchEncoder encoder(element);
    const auto find = [&](uint64_t band, std::vector<GroupScale>& scales) {
      finder.Find(band, scales);
      if (bands.is_one_group && band > 0) return;
      std::ranges::transform(scales, result.scales.data() + bands.first_group(band),
                             &GroupScale::code);
    };
    ForEachStretch(bands, first, last, find, [&](const Stretch& stretch) {
      std::ranges::copy(encoder.Encode(stretch, &matrix.values[stretch.first]),
                        result.codes.data() + stretch.first);
    });
  });
  return result;
}

void DecodeScaled(const ScaledFormat& format, const Format& element, const ScaledCodes& codes,
                  uint64_t rows, uint64_t columns, BlockAxis axis, std::span<float> values) {
  const DefaultFloatEnvironment environment;
  const Bands bands(format, rows, columns, axis);
  const uint64_t elements = rows * columns, groups = bands.all_groups();
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
  ForParts(bands, [&](uint64_t first, uint64_t last) {
    const auto find = [&](uint64_t band, std::vector<GroupScale>& of_band) {
      for (uint64_t g = 0; g < bands.groups; ++g) {
        of_band[g] = scales.OfCode(codes.scales[bands.first_group(band) + g]);
      }
    };
    std::array<uint16_t, kStretch> wide;
    ForEachStretch(bands, first, last, find, [&](const Stretch& stretch) {
      std::copy_n(codes.codes.data() + stretch.first, stretch.count, wide.data());
      DecodeStretch(element, stretch, {wide.data(), stretch.count},
                    values.subspan(stretch.first, stretch.count));
    });
  });
}

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
  result.stats.elements = matrix.values.size();
  const Bands bands(format, matrix.rows, matrix.columns, axis);
  const ScaleFinder finder(format, element, matrix, bands, scale);
  const CodecSpec spec = MakeCodecSpec(ConversionTo(element));
  const bool by_rows = channels == MatrixChannels::kRows;
  std::vector<ChannelSquares> squares(by_rows ? matrix.rows : matrix.columns);
  StretchEncoder encoder(element);
  std::array<float, kStretch> decoded;
  const auto find = [&](uint64_t band, std::vector<GroupScale>& scales) {
    finder.Find(band, scales);
    for (const GroupScale& group : scales) {
      result.min_scale = std::fmin(result.min_scale, group.encode);
      result.max_scale = std::fmax(result.max_scale, group.encode);
    }
  };
  ForEachStretch(bands, 0, bands.count, find, [&](const Stretch& stretch) {
    const float* const values = &matrix.values[stretch.first];
    const std::span<const uint16_t> codes = encoder.Encode(stretch, values);
    DecodeStretch(element, stretch, codes, std::span(decoded).first(stretch.count));
    const Converted converted = {matrix.values.subspan(stretch.first, stretch.count),
                                 encoder.scaled(), codes.data(), decoded.data()};
    Count(spec, converted, result.stats);
    if (by_rows) {
      AddSquares(
          converted, result.stats, [&](size_t) -> auto& { return squares[stretch.row]; });
    } else {
      AddSquares(
          converted, result.stats, [&](size_t i) -> auto& { return squares[stretch.column + i]; });
    }
  });
  AddChannels(squares, result);
  if (result.max_scale == 0) result.min_scale = 0;
  return result;
}

// What the tensors of a recorded step lose.

namespace {

bool IsOfParameter(Role role) { return role == Role::kValue || role == Role::kGrad; }

MatrixView AsMatrix(const TraceTensor& tensor, std::span<const float> values) {
  const std::vector<uint64_t>& shape = tensor.info->shape;
  if (values.empty()) return {};
  if (shape.size() < 2) return {values, 1, values.size()};
  const uint64_t columns =
      IsOfParameter(tensor.info->role) ? values.size() / shape.front() : shape.back();
  return {values, values.size() / columns, columns};
}

// The axes along which blocks lie in products of matrices.
std::vector<BlockAxis> AxesOf(Role role, const ScaledFormat& format) {
  if (format.sharing == Sharing::kTensor) return {BlockAxis::kRow};
  if (format.square_parameters && role == Role::kValue) return {BlockAxis::kBoth};
  return {BlockAxis::kRow, BlockAxis::kColumn};
}

ScaledLoss LossOf(const TraceTensor& tensor, const MatrixView& matrix, const ScaledFormat& format,
                  std::optional<float> scale) {
  const MatrixChannels channels =
      IsOfParameter(tensor.info->role) ? MatrixChannels::kRows : MatrixChannels::kColumns;
  ScaledLoss loss;
  const std::vector<BlockAxis> axes = AxesOf(tensor.info->role, format);
  for (size_t i = 0; i < axes.size(); ++i) {
    loss.by_axis[i] = MeasureScaled(format, ElementOf(format, tensor.info->role), matrix, axes[i],
                                    channels, scale);
  }
  return loss;
}

std::vector<float> ValuesOf(const Recording& recording, const TraceTensor& tensor) {
  if (tensor.device >= 0) {
    throw UsageError(Quoted(tensor.info->name), "scaled formats are measured on the host",
                     "a tensor in the host's memory", "cuda:" + std::to_string(tensor.device));
  }
  std::vector<float> values;
  values.reserve(tensor.elements);
  VisitValues(recording, tensor, [&](uint64_t, std::span<const float> chunk) {
    values.insert(values.end(), chunk.begin(), chunk.end());
  });
  return values;
}

}  // namespace

std::vector<std::vector<ScaledLoss>> MeasureScaledStep(const TraceStep& step,
                                                       std::span<const NamedScaledFormat> formats,
                                                       const ScaleOfTensor& scale) {
  std::vector<TensorSources> tensors = CollectTensors(step, Pass::kBackward);
  std::ranges::move(CollectTensors(step, Pass::kForward), std::back_inserter(tensors));
  std::vector<std::vector<ScaledLoss>> losses(formats.size(),
                                              std::vector<ScaledLoss>(tensors.size()));
  if (formats.empty()) return losses;
  ParallelFor(tensors.size(), [&](size_t t) {
    for (size_t r = 0; r < tensors[t].recordings.size(); ++r) {
      const TraceTensor* const tensor = tensors[t].recordings[r].tensor;
      if (tensor == nullptr) continue;
      const std::vector<float> values = ValuesOf(step.recordings[r], *tensor);
      const MatrixView matrix = AsMatrix(*tensor, values);
      for (size_t f = 0; f < formats.size(); ++f) {
        const std::optional<float> given = scale ? scale(f, tensor->info->name) : std::nullopt;
        losses[f][t].Merge(LossOf(*tensor, matrix, formats[f].format, given));
      }
    }
  });
  return losses;
}

}  // namespace dlsim
