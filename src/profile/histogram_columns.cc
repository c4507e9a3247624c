// SPDX-License-Identifier: Apache-2.0
#include "src/profile/histogram_columns.h"

#include <bit>
#include <cmath>
#include <limits>

#include "src/base/check.h"

namespace dlsim {
namespace {

// The significands of a bin: from `first` to `last`.
struct BinRange {
  uint64_t first, last;

  uint128_t Least(uint64_t count) const { return uint128_t{first * first} * count; }
  // How far the sum of squares of `count` of them can lie above the least.
  uint128_t Spread(uint64_t count) const { return uint128_t{last * last - first * first} * count; }
  int OffsetBits() const { return BitWidth(last - first); }
};

// Every power of two is an edge, so that the significands of a bin are consecutive.
BinRange RangeOf(const HistogramEdges& edges, size_t bin) {
  const uint64_t first = Significand(edges.bits()[bin]);
  return {first, first + (edges.bits()[bin + 1] - edges.bits()[bin]) - 1};
}

struct Columns {
  std::string heads, steps, widths;
  BitWriter* bits;
};

void PutBin(const HistogramBin& bin, const BinRange& range, Columns& out) {
  const int width = BitWidth(bin.count);
  out.widths.push_back(static_cast<char>(width));
  out.bits->Put(bin.count, width - 1);
  if (bin.count > 1) {
    out.bits->Put(bin.squares - range.Least(bin.count), BitWidth(range.Spread(bin.count)));
    return;
  }
  const double root = std::sqrt(static_cast<double>(static_cast<uint64_t>(bin.squares)));
  out.bits->Put(static_cast<uint64_t>(root) - range.first, range.OffsetBits());
}

void PutSign(const SignHistogram& sign, const HistogramEdges& edges, Columns& out) {
  uint32_t next = 0;
  for (const HistogramBin& bin : sign.bins) {
    PutVarint(bin.bin - next, out.steps);
    PutBin(bin, RangeOf(edges, bin.bin), out);
    next = bin.bin + 1;
  }
  if (sign.bins.empty() || sign.bins.back().count == 1) return;
  const BinRange range = RangeOf(edges, sign.bins.back().bin);
  out.bits->Put(Significand(sign.largest) - range.first, range.OffsetBits());
}

class HistogramReader {
 public:
  HistogramReader(const HistogramEdges& edges, ByteReader& columns, BitReader& bits)
      : edges_(edges),
        heads_(columns.place(), columns.Take(columns.Varint())),
        steps_(columns.place(), columns.Take(columns.Varint())),
        widths_(columns.place(), columns.Take(columns.Varint())),
        bits_(bits) {}

  Histogram Take() {
    Histogram histogram;
    histogram.zeros = histogram.elements = heads_.Varint();
    histogram.nan = heads_.Varint();
    histogram.inf = heads_.Varint();
    AddElements(histogram.nan, histogram);
    AddElements(histogram.inf, histogram);
    histogram.sum = std::bit_cast<double>(static_cast<uint64_t>(bits_.Get(64)));
    heads_.Require(std::isfinite(histogram.sum), "damaged: a sum is not finite");
    for (SignHistogram& sign : histogram.signs) TakeSign(sign, histogram);
    return histogram;
  }

  void RequireEnd() const {
    heads_.RequireEnd();
    steps_.RequireEnd();
    widths_.RequireEnd();
  }

 private:
  void AddElements(uint64_t count, Histogram& histogram) const {
    heads_.Require(count <= std::numeric_limits<uint64_t>::max() - histogram.elements,
                   "damaged: too many elements");
    histogram.elements += count;
  }

  void TakeSign(SignHistogram& sign, Histogram& histogram) {
    const uint64_t count = heads_.Varint();
    heads_.Require(count <= edges_.bin_count() && count <= widths_.rest().size(),
                   "damaged: too many bins");
    sign.bins.resize(static_cast<size_t>(count));
    uint64_t next = 0;
    for (HistogramBin& bin : sign.bins) {
      const uint64_t step = steps_.Varint();
      heads_.Require(step < edges_.bin_count() - next, "damaged: a bin beyond the last");
      bin.bin = static_cast<uint32_t>(next + step);
      next = uint64_t{bin.bin} + 1;
      TakeBin(bin, RangeOf(edges_, bin.bin));
      AddElements(bin.count, histogram);
    }
    if (count > 0) sign.largest = TakeLargest(sign.bins.back());
  }

  void TakeBin(HistogramBin& bin, const BinRange& range) {
    const int width = widths_.Byte();
    heads_.Require(width >= 1 && width <= 64, "damaged: a count without bits");
    bin.count = uint64_t{1} << (width - 1) | static_cast<uint64_t>(bits_.Get(width - 1));
    if (bin.count == 1) {
      const uint64_t significand = TakeSignificand(range);
      bin.squares = significand * significand;
      return;
    }
    const uint128_t spread = range.Spread(bin.count);
    const uint128_t offset = bits_.Get(BitWidth(spread));
    heads_.Require(offset <= spread, "damaged: a sum of squares that no values have");
    bin.squares = range.Least(bin.count) + offset;
  }

  uint64_t TakeSignificand(const BinRange& range) {
    const uint64_t offset = static_cast<uint64_t>(bits_.Get(range.OffsetBits()));
    heads_.Require(offset <= range.last - range.first, "damaged: a value beyond its bin");
    return range.first + offset;
  }

  uint32_t TakeLargest(const HistogramBin& bin) {
    const BinRange range = RangeOf(edges_, bin.bin);
    uint64_t significand = 0;
    if (bin.count == 1) {
      const double root = std::sqrt(static_cast<double>(static_cast<uint64_t>(bin.squares)));
      significand = static_cast<uint64_t>(root);
    } else {
      significand = TakeSignificand(range);
    }
    return edges_.bits()[bin.bin] + static_cast<uint32_t>(significand - range.first);
  }

  const HistogramEdges& edges_;
  ByteReader heads_, steps_, widths_;
  BitReader& bits_;
};

}  // namespace

void PutHistograms(std::span<const Histogram* const> histograms, const HistogramEdges& edges,
                   std::string& columns, BitWriter& bits) {
  Columns out = {{}, {}, {}, &bits};
  for (const Histogram* histogram : histograms) {
    PutVarint(histogram->zeros, out.heads);
    PutVarint(histogram->nan, out.heads);
    PutVarint(histogram->inf, out.heads);
    bits.Put(std::bit_cast<uint64_t>(histogram->sum), 64);
    for (const SignHistogram& sign : histogram->signs) {
      PutVarint(sign.bins.size(), out.heads);
      PutSign(sign, edges, out);
    }
  }
  for (const std::string* column : {&out.heads, &out.steps, &out.widths}) {
    PutString(*column, columns);
  }
}

std::vector<Histogram> TakeHistograms(size_t count, const HistogramEdges& edges,
                                      ByteReader& columns, BitReader& bits) {
  constexpr size_t kLeastHead = 5;
  columns.Require(count <= columns.rest().size() / kLeastHead, "damaged: too many histograms");
  HistogramReader reader(edges, columns, bits);
  std::vector<Histogram> histograms(count);
  for (Histogram& histogram : histograms) histogram = reader.Take();
  reader.RequireEnd();
  return histograms;
}

uint64_t MaxColumnBytes(uint64_t count, const HistogramEdges& edges) {
  constexpr uint64_t kMaxVarint = 10, kHeadVarints = 5, kMaxBin = 6, kSizes = 3;
  const uint64_t of_one = kHeadVarints * kMaxVarint + 2 * kMaxBin * edges.bin_count();
  const uint128_t bytes = uint128_t{count} * of_one + kSizes * kMaxVarint;
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  return bytes > kMost ? kMost : static_cast<uint64_t>(bytes);
}

}  // namespace dlsim
