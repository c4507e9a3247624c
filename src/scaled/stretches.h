// SPDX-License-Identifier: Apache-2.0
// The groups of a matrix that share scales, and its elements in stretches with their factors.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dlsim/scaled_codec.h"
#include "src/base/check.h"
#include "src/scaled/element_kernels.h"
#include "src/scaled/group_scale.h"

namespace dlsim {

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

}  // namespace dlsim
