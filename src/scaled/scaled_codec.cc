// SPDX-License-Identifier: Apache-2.0
// Matrices in scaled formats: the groups that share scales, these scales, and the elements with
// their factors, which are encoded, decoded or measured stretch by stretch.
#include "dlsim/scaled_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/codec.h"
#include "dlsim/error.h"
#include "src/base/check.h"
#include "src/base/float_environment.h"
#include "src/base/parallel.h"
#include "src/scaled/element_kernels.h"
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
      max_of_both_(static_cast<float>(MaxFinite(kE4m3)) * max_),
      highest_exponent_(std::ilogb(max_)),
      half_of_last_bit_(uint32_t{1} << (22 - element.mantissa_bits)),
      of_scales_(MakeCodecSpec({kE4m3, Rounding::kNearestEven, Overflow::kSaturate})) {
  const bool from_ratio = rule_ == ScaleRule::kUp || rule_ == ScaleRule::kNearest;
  // The originals do not multiply by 2^127.
  encode_of_zero_ = from_ratio ? 1.0f : group_scale::PowerOfTwo(group_scale::kE8m0Bias - 1);
  if (type_ == ScaleType::kFp8) SetTensorScale(largest);
}

void GroupScales::OfEach(std::span<const uint32_t> largest, std::span<GroupScale> scales) const {
  for (size_t i = 0; i < largest.size(); ++i) scales[i] = Of(std::bit_cast<float>(largest[i]));
}

void GroupScales::OfCodes(std::span<const uint32_t> codes, std::span<GroupScale> scales) const {
  for (size_t i = 0; i < codes.size(); ++i) scales[i] = OfCode(codes[i]);
}

float LargestMagnitude(std::span<const float> values) {
  uint32_t largest = 0;
  RaiseForGroups(values.data(), values.size(), values.size(), &largest);
  return std::bit_cast<float>(largest);
}

namespace {

// Elements of a stretch, unless fewer are left: they and their factors stay in the first-level
// cache.
inline constexpr size_t kStretch = 1024;

// Rows of a matrix that have the same scales: those of a block, or one for BlockAxis::kRow.
// Groups of a row lie side by side, each as wide as `width`.
class Bands {
 public:
  Bands(const ScaledFormat& format, uint64_t rows, uint64_t columns, BlockAxis axis)
      : rows_(rows), columns_(columns), is_one_group_(format.sharing == Sharing::kTensor) {
    DLSIM_CHECK(format.sharing == Sharing::kBlock || axis != BlockAxis::kBoth);
    const GroupSize group = GroupSizeOf(format, rows, columns, axis);
    height_ = is_one_group_ ? 1 : group.rows;
    width_ = group.columns;
  }

  uint64_t rows() const { return rows_; }
  uint64_t columns() const { return columns_; }
  uint64_t width() const { return width_; }
  uint64_t count() const { return columns_ == 0 ? 0 : (rows_ + height_ - 1) / height_; }

  // Rows of a band.
  uint64_t begin(uint64_t band) const { return band * height_; }
  uint64_t end(uint64_t band) const { return std::min(rows_, (band + 1) * height_); }

  // Groups of a band, and of the matrix, which may be one for all bands.
  uint64_t groups() const { return columns_ == 0 ? 0 : (columns_ + width_ - 1) / width_; }
  uint64_t all_groups() const {
    return is_one_group_ ? std::min<uint64_t>(count(), 1) : count() * groups();
  }
  uint64_t first_group(uint64_t band) const { return is_one_group_ ? 0 : band * groups(); }

 private:
  uint64_t rows_, columns_, height_, width_;
  bool is_one_group_;
};

// The factors of a row's elements, by column.
class Factors {
 public:
  explicit Factors(const Bands& bands)
      : width_(bands.width()), encode_(bands.columns()), decode_(bands.columns()) {}

  // Sets them from the scales of a band's groups.
  void Set(std::span<const GroupScale> scales) {
    float *encode = encode_.data(), *decode = decode_.data();
    size_t left = encode_.size();
    for (const GroupScale& scale : scales) {
      const size_t count = std::min(width_, left);
      encode = std::fill_n(encode, count, scale.encode);
      decode = std::fill_n(decode, count, scale.decode);
      left -= count;
    }
  }

  std::span<const float> encode() const { return encode_; }
  std::span<const float> decode() const { return decode_; }

 private:
  size_t width_;
  std::vector<float> encode_, decode_;
};

// Finds the scales of a matrix.
class ScaleFinder {
 public:
  // `given`: the scale of all groups instead. Throws Error if values and shape differ.
  ScaleFinder(const ScaledFormat& format, const Format& element, const MatrixView& matrix,
              const Bands& bands, std::optional<float> given);

  // Where the scales of a band are found; may be used again.
  struct OfBand {
    std::vector<GroupScale> scales;  // of its groups
    std::vector<uint32_t> largest;
  };
  void Find(uint64_t band, OfBand& found) const;

  float tensor_scale() const { return scales_.tensor_scale(); }
  const std::optional<GroupScale>& given() const { return given_; }

 private:
  void FindLargest(uint64_t band, std::vector<uint32_t>& largest) const;

  const MatrixView& matrix_;
  const Bands& bands_;
  GroupScales scales_;
  std::optional<GroupScale> given_;  // or that of the tensor
};

// Cuts rows into stretches: parts of a long row, or short rows together.
template <class Visit>
class StretchCutter {
 public:
  explicit StretchCutter(const Visit& visit) : visit_(visit) {}

  // Adds the next row, whose first element is `first`.
  void AddRow(size_t first, const Factors& factors) {
    const size_t columns = factors.encode().size();
    if (columns >= kStretch / 2) return CutRow(first, factors);
    if (encode_.empty()) first_ = first;
    encode_.insert(encode_.end(), factors.encode().begin(), factors.encode().end());
    decode_.insert(decode_.end(), factors.decode().begin(), factors.decode().end());
    if (encode_.size() >= kStretch) Flush();
  }

  void Flush() {
    if (!encode_.empty()) visit_(Stretch{first_, encode_.size(), encode_.data(), decode_.data()});
    encode_.clear(), decode_.clear();
  }

 private:
  void CutRow(size_t first, const Factors& factors) {
    const size_t columns = factors.encode().size();
    for (size_t begin = 0; begin < columns; begin += kStretch) {
      visit_(Stretch{first + begin, std::min(kStretch, columns - begin),
                     factors.encode().data() + begin, factors.decode().data() + begin});
    }
  }

  const Visit& visit_;
  size_t first_ = 0;
  std::vector<float> encode_, decode_;
};

// Goes through bands [first, last) in memory order: set(band, factors) sets the factors of its
// rows, visit(stretch) takes their elements.
template <class Set, class Visit>
void ForEachStretch(const Bands& bands, uint64_t first, uint64_t last, const Set& set,
                    const Visit& visit) {
  Factors factors(bands);
  StretchCutter<Visit> cutter(visit);
  for (uint64_t band = first; band < last; ++band) {
    set(band, factors);
    for (uint64_t row = bands.begin(band); row < bands.end(band); ++row) {
      cutter.AddRow(row * bands.columns(), factors);
    }
  }
  cutter.Flush();
}

void CheckShape(const MatrixView& matrix) {
  const uint64_t elements = matrix.rows * matrix.columns;
  if (matrix.values.size() == elements) return;
  throw UsageError("matrix", "size and shape differ", std::to_string(elements),
                   std::to_string(matrix.values.size()));
}

ScaleFinder::ScaleFinder(const ScaledFormat& format, const Format& element,
                         const MatrixView& matrix, const Bands& bands, std::optional<float> given)
    : matrix_(matrix),
      bands_(bands),
      scales_(format, element,
              format.scale == ScaleType::kFp8 ? LargestMagnitude(matrix.values) : 0) {
  CheckShape(matrix);
  if (given) given_ = Float32Scale(*given);
  if (!given && format.sharing == Sharing::kTensor) {
    given_ = scales_.Of(LargestMagnitude(matrix.values));
  }
}

void ScaleFinder::Find(uint64_t band, OfBand& found) const {
  found.scales.resize(bands_.groups());
  if (given_) {
    std::ranges::fill(found.scales, *given_);
  } else {
    FindLargest(band, found.largest);
    scales_.OfEach(found.largest, found.scales);
  }
}

void ScaleFinder::FindLargest(uint64_t band, std::vector<uint32_t>& largest) const {
  largest.assign(bands_.groups(), 0);
  for (uint64_t row = bands_.begin(band); row < bands_.end(band); ++row) {
    const float* const values = matrix_.values.data() + row * matrix_.columns;
    if (bands_.width() == 1) {
      RaiseEach(values, matrix_.columns, largest.data());
    } else {
      RaiseForGroups(values, matrix_.columns, bands_.width(), largest.data());
    }
  }
}

// Calls body(first band, last band) for parts of a matrix on several threads.
template <class Body>
void ForParts(const Bands& bands, const Body& body) {
  const uint64_t elements = std::max<uint64_t>(1, bands.rows() * bands.columns());
  const uint64_t parts = (elements + kBlockElements - 1) / kBlockElements;
  const uint64_t each = std::max<uint64_t>(1, bands.count() / parts);
  ParallelFor((bands.count() + each - 1) / each,
              [&](size_t part) { body(part * each, std::min(bands.count(), (part + 1) * each)); });
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

ScaledCodes EncodeScaled(const ScaledFormat& format, const Format& element,
                         const MatrixView& matrix, BlockAxis axis, std::optional<float> scale) {
  ScaledCodes result;
  EncodeScaledInto(format, element, matrix, axis, scale, result);
  return result;
}

void EncodeScaledInto(const ScaledFormat& format, const Format& element, const MatrixView& matrix,
                      BlockAxis axis, std::optional<float> scale, ScaledCodes& result) {
  const DefaultFloatEnvironment environment;
  const Bands bands(format, matrix.rows, matrix.columns, axis);
  const ScaleFinder finder(format, element, matrix, bands, scale);
  const CodecSpec spec = MakeElementSpec(element);
  result.codes.resize(matrix.values.size());
  result.scales.resize(bands.all_groups());
  result.tensor_scale = finder.tensor_scale();
  if (finder.given()) std::ranges::fill(result.scales, finder.given()->code);
  ForParts(bands, [&](uint64_t first, uint64_t last) {
    ScaleFinder::OfBand found;
    const auto set = [&](uint64_t band, Factors& factors) {
      finder.Find(band, found);
      factors.Set(found.scales);
      if (finder.given()) return;
      std::ranges::transform(found.scales, result.scales.data() + bands.first_group(band),
                             &GroupScale::code);
    };
    ForEachStretch(bands, first, last, set, [&](const Stretch& stretch) {
      EncodeElements(spec, stretch, matrix.values.data() + stretch.first,
                     result.codes.data() + stretch.first);
    });
  });
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
  const CodecSpec spec = MakeElementSpec(element);
  ForParts(bands, [&](uint64_t first, uint64_t last) {
    std::vector<GroupScale> of_band(bands.groups());
    const auto set = [&](uint64_t band, Factors& factors) {
      scales.OfCodes(std::span(codes.scales).subspan(bands.first_group(band), bands.groups()),
                     of_band);
      factors.Set(of_band);
    };
    ForEachStretch(bands, first, last, set, [&](const Stretch& stretch) {
      DecodeElements(spec, stretch, codes.codes.data() + stretch.first,
                     values.data() + stretch.first);
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
