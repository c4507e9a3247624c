// SPDX-License-Identifier: Apache-2.0
#include "src/measure/channel_sums.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace dlsim {
namespace {

// Harm from which on it is looked at; half of what the curves keep.
constexpr double kLeastHarm = 0x1p-21;

uint16_t CodeOf(double harm) {
  if (!(harm > 0)) return ChannelCurves::kNothing;
  const double code = std::round(-std::log2(std::min(harm, 1.0)) * ChannelCurves::kCodesPerBinade);
  return code > ChannelCurves::kMostCode ? ChannelCurves::kNothing : static_cast<uint16_t>(code);
}

constexpr double kHarmUnits = 0x1p62;  // that a sum counts of a harm of one

// Exponent bits and their first place say where a binade begins: 2^(bits - 127).
constexpr int kBias = 127;
constexpr size_t kBinades = kPlaces / 2;

// The exponent of the binade that a place begins.
int LowestOf(size_t place) { return static_cast<int>(place / 2) - kBias; }

// Of a normal number.
constexpr double PowerOfTwo(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

// Mostly a value has fewer than 63 bits, and processors convert only signed ones.
double ToDouble(uint128_t value) {
  const bool is_small = value >> 63 == 0;
  return is_small ? static_cast<double>(static_cast<int64_t>(value)) : static_cast<double>(value);
}

double NotBelowZero(double value) { return value > 0 ? value : 0; }

// The smallest e with 4^e >= value, which is a normal number.
int CeilHalfLog2(double value) {
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);  // from 0.5 up to 1
  const int ceil_log2 = fraction == 0.5 ? exponent - 1 : exponent;
  return ceil_log2 >= 0 ? (ceil_log2 + 1) / 2 : -(-ceil_log2 / 2);
}

// The magnitudes of half a binade, in units of its last place.
struct HalfBinade {
  double count, sum, squares;

  explicit HalfBinade(const WideSums& sums)
      : count(static_cast<double>(static_cast<int64_t>(sums.count))),
        sum(static_cast<double>(static_cast<int64_t>(sums.significands))),
        squares(ToDouble(sums.squares)) {}

  // Of plain tables.
  explicit HalfBinade(const CountRecords& records) {
    static_assert(kWays == 2);
    constexpr uint64_t kSignificands = (uint64_t{1} << CountRecord::kCountShift) - 1;
    const uint64_t packed = records[0].packed + records[1].packed;
    count = static_cast<double>(static_cast<int64_t>(packed >> CountRecord::kCountShift));
    sum = static_cast<double>(static_cast<int64_t>(packed & kSignificands));
    squares = static_cast<double>(static_cast<int64_t>(records[0].squares + records[1].squares));
  }

  // The squared errors if they become `value`.
  double ErrorsAt(double value) const {
    return NotBelowZero(value * value * count - 2 * value * sum + squares);
  }
};

// What is needed of the magnitudes from 2^e up to 2^(e+1), from the lowest binade on.
class Binades {
 public:
  // By place, from `first` on.
  template <class Sums>
  Binades(std::span<const Sums> sums, size_t first) : size_(sums.size() / 2) {
    constexpr double kLower = 0x1p23, kUpper = 0x1p24;  // ends of a binade in its last places
    for (size_t i = 0; i < size_; ++i) {
      const HalfBinade low(sums[2 * i]), high(sums[2 * i + 1]);
      const double unit = kUnits[first / 2 + i];
      const double high_to_upper = high.ErrorsAt(kUpper);
      count_[i] = low.count + high.count;
      squares_[i] = (low.squares + high.squares) * unit;
      to_nearest_[i] = (low.ErrorsAt(kLower) + high_to_upper) * unit;
      to_upper_[i] = (low.ErrorsAt(kUpper) + high_to_upper) * unit;
    }
    while (size_ > 0 && count_[size_ - 1] == 0) --size_;
  }

  // Of these and all lower ones, those above the last that holds something.
  size_t size() const { return size_; }
  double count(size_t i) const { return i < size_ ? count_[i] : 0; }
  double squares(size_t i) const { return i < size_ ? squares_[i] : 0; }
  // The squared errors where they become the nearer of both ends, and where all become the upper.
  double to_nearest(size_t i) const { return i < size_ ? to_nearest_[i] : 0; }
  double to_upper(size_t i) const { return i < size_ ? to_upper_[i] : 0; }

 private:
  // The square of the last place's value, by binade.
  static constexpr std::array<double, kBinades> kUnits = [] {
    std::array<double, kBinades> units = {};
    for (size_t i = 0; i < kBinades; ++i) units[i] = PowerOfTwo(2 * (static_cast<int>(i) - 150));
    return units;
  }();

  size_t size_;
  std::array<double, kBinades> count_, squares_, to_nearest_, to_upper_;
};

}  // namespace

void ChannelSums::AddHarm(int exponent, double harm) {
  const size_t place = PlaceOf(exponent);
  const double at_most_all = std::min(harm, 1.0);
  sums_[place] += static_cast<uint64_t>(at_most_all * kHarmUnits);
  worst_[place] = std::max(worst_[place], at_most_all);
}

// Where the quantum is 2^e: what is below its half becomes zero; up to 1.5 of it one quantum; up to
// two of it, two; what is larger lies anywhere between two values.
template <class Binades>
void ChannelSums::AddBinades(const Binades& binades, int lowest) {
  double count = 0, squares = 0;
  for (size_t i = 0; i < binades.size(); ++i) {
    count += binades.count(i);
    squares += binades.squares(i);
  }
  if (count == 0) return;
  ++channels_;
  const int all_lost = lowest + static_cast<int>(binades.size()) + 1;
  const int begin = std::clamp(CeilHalfLog2(kLeastHarm * 12 * squares / count), kLowest, kHighest);
  double zeroed = 0, quantum_squared_12th = PowerOfTwo(2 * begin) / 12;
  for (int e = lowest; e < begin; ++e) {
    const auto i = static_cast<size_t>(e - lowest);
    count -= binades.count(i);
    if (e < begin - 1) zeroed += binades.squares(i);
  }
  const double share = 1 / squares;
  for (int e = begin; e < all_lost && e <= kHighest; ++e, quantum_squared_12th *= 4) {
    const auto i = static_cast<size_t>(e - lowest);  // huge, as i - 1 may be, below the lowest
    count -= binades.count(i);
    const double errors =
        zeroed + binades.to_upper(i - 1) + binades.to_nearest(i) + count * quantum_squared_12th;
    AddHarm(e, errors * share);
    zeroed += binades.squares(i - 1);
  }
  ++lost_[std::min(PlaceOf(std::max(all_lost, kLowest)), kQuanta)];
}

void ChannelSums::Add(ChannelTable& table) {
  const auto add = [&](auto sums, size_t first) {
    AddBinades(Binades(sums, first), LowestOf(first));
  };
  table.IsPlain() ? table.FinishPlain(add) : table.Finish(add);
}

void ChannelSums::Add(std::span<const WideSums> sums, size_t first) {
  AddBinades(Binades(sums, first), LowestOf(first));
}

void ChannelSums::Merge(const ChannelSums& other) {
  channels_ += other.channels_;
  for (size_t i = 0; i < kQuanta; ++i) {
    sums_[i] += other.sums_[i];
    worst_[i] = std::max(worst_[i], other.worst_[i]);
    lost_[i] += other.lost_[i];
  }
}

// A larger quantum only loses more: each of its values is one of the smaller's.
ChannelCurves ChannelSums::ToCurves() const {
  if (channels_ == 0) return {};
  ChannelCurves curves;
  curves.channels = channels_;
  uint64_t lost = 0;
  double mean = 0, worst = 0;
  for (size_t i = 0; i < kQuanta; ++i) {
    lost += lost_[i];
    const double sum = static_cast<double>(sums_[i]) / kHarmUnits + static_cast<double>(lost);
    mean = std::max(mean, sum / static_cast<double>(channels_));
    worst = lost > 0 ? 1 : std::max(worst, worst_[i]);
    const uint16_t code = CodeOf(mean), worst_code = CodeOf(worst);
    if (curves.worst.empty()) curves.first = kLowest + static_cast<int>(i);
    if (code == 0 && worst_code == 0) break;
    if (curves.worst.empty() && worst_code == ChannelCurves::kNothing) continue;
    curves.mean.push_back(code);
    curves.worst.push_back(worst_code);
  }
  return curves;
}

}  // namespace dlsim
