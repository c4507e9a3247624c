// SPDX-License-Identifier: Apache-2.0
#include "src/measure/channel_sums.h"

#include <algorithm>
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

}  // namespace

void ChannelBins::Take(std::vector<NamedBin>& bins) {
  constexpr int kBias = 127;
  bins.clear();
  for (size_t word = 0; word < used_.size(); ++word) {
    for (uint64_t left = used_[word]; left != 0; left &= left - 1) {
      const size_t place = word * 64 + static_cast<size_t>(std::countr_zero(left));
      Bin& one = bins_[0][place];
      Bin& other = bins_[1][place];
      bins.push_back({static_cast<int>(place / 2) - kBias,
                      place % 2 == 1,
                      {one.count + other.count, one.sum + other.sum, one.squares + other.squares}});
      one = {};
      other = {};
    }
    used_[word] = 0;
  }
}

void ChannelSums::AddHarm(int exponent, double harm) {
  const size_t place = PlaceOf(exponent);
  const double at_most_all = std::min(harm, 1.0);
  sums_[place] += at_most_all;
  worst_[place] = std::max(worst_[place], at_most_all);
}

// Where the quantum is 2^e: what is below its half becomes zero; up to 1.5 of it one quantum; up to
// two of it, two; what is larger lies anywhere between two values.
void ChannelSums::Add(std::span<const ChannelBins::NamedBin> bins) {
  if (bins.empty()) return;
  double count = 0, squares = 0;
  for (const ChannelBins::NamedBin& one : bins) {
    count += one.bin.count;
    squares += one.bin.squares;
  }
  ++channels_;
  const int first = static_cast<int>(std::ceil(0.5 * std::log2(kLeastHarm * 12 * squares / count)));
  const int all_lost = bins.back().exponent + 2;
  double zeroed = 0;
  size_t done = 0;
  for (int e = std::clamp(first, kLowest, kHighest); e < all_lost && e <= kHighest; ++e) {
    const double quantum = std::ldexp(1.0, e);
    for (; done < bins.size() && bins[done].exponent < e - 1; ++done) {
      zeroed += bins[done].bin.squares;
      count -= bins[done].bin.count;
    }
    double errors = zeroed, rounded = 0;
    for (size_t b = done; b < bins.size() && bins[b].exponent <= e; ++b) {
      const ChannelBins::Bin& bin = bins[b].bin;
      const double becomes = bins[b].exponent == e && bins[b].upper_half ? 2 * quantum : quantum;
      errors += std::max(0.0, becomes * becomes * bin.count - 2 * becomes * bin.sum + bin.squares);
      rounded += bin.count;
    }
    errors += (count - rounded) * quantum * quantum / 12;
    AddHarm(e, errors / squares);
  }
  ++lost_[std::min(PlaceOf(std::max(all_lost, kLowest)), kQuanta)];
}

void ChannelSums::Merge(const ChannelSums& later) {
  channels_ += later.channels_;
  for (size_t i = 0; i < kQuanta; ++i) {
    sums_[i] += later.sums_[i];
    worst_[i] = std::max(worst_[i], later.worst_[i]);
    lost_[i] += later.lost_[i];
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
    const double sum = sums_[i] + static_cast<double>(lost);
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

double ChannelCurves::HarmAt(const std::vector<uint16_t>& codes, double log_quantum) const {
  if (!known()) return 0;
  const double place = std::floor(log_quantum) - first;
  const auto code_at = [&](double at) -> double {
    if (at < 0) return kMostCode;
    if (at >= static_cast<double>(codes.size())) return 0;
    return std::min(codes[static_cast<size_t>(at)], kMostCode);
  };
  const double share = log_quantum - std::floor(log_quantum);
  const double code = code_at(place) * (1 - share) + (share > 0 ? code_at(place + 1) * share : 0);
  return code >= kMostCode ? 0 : std::exp2(-code / kCodesPerBinade);
}

std::optional<double> LogQuantum(const Conversion& conversion, double scale) {
  const bool nearest = conversion.rounding == Rounding::kNearestEven ||
                       conversion.rounding == Rounding::kNearestAway;
  if (!nearest || conversion.subnormals != Subnormals::kKeep) return std::nullopt;
  const Format& format = conversion.format;
  return 1 - format.bias - format.mantissa_bits - std::log2(std::abs(scale));
}

}  // namespace dlsim
