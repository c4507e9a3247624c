// SPDX-License-Identifier: Apache-2.0
#include "src/measure/channel_sums.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

namespace dlsim {
namespace {

// Harm from which on it is looked at; half of what the curves keep.
constexpr double kLeastHarm = 0x1p-21;

uint16_t CodeOf(double harm) {
  if (!(harm > 0)) return ChannelCurves::kNothing;
  const double code = std::round(-std::log2(std::min(harm, 1.0)) * ChannelCurves::kCodesPerBinade);
  return code > ChannelCurves::kMostCode ? ChannelCurves::kNothing : static_cast<uint16_t>(code);
}

// Exponent bits and their first place say where a binade begins: 2^(bits - 127).
constexpr int kBias = 127;

// The exponent of the binade that a place begins.
int LowestOf(size_t place) { return static_cast<int>(place / 2) - kBias; }

// The smallest e with 4^e >= value, which is a normal number.
int CeilHalfLog2(double value) {
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);  // from 0.5 up to 1
  const int ceil_log2 = fraction == 0.5 ? exponent - 1 : exponent;
  return ceil_log2 >= 0 ? (ceil_log2 + 1) / 2 : -(-ceil_log2 / 2);
}

// One for each thread, since the zeros below the lowest binade never change.
Binades& ThreadBinades() {
  thread_local const std::unique_ptr<Binades> binades = std::make_unique<Binades>();
  return *binades;
}

}  // namespace

template <class Sums>
void ChannelSums::AddPlaces(std::span<const Sums> sums, size_t first) {
  Binades& binades = ThreadBinades();
  FillBinades(sums, first, binades);
  if (binades.count() == 0) return;
  ++channels_;
  const int lowest = LowestOf(first);
  const int all_lost = lowest + static_cast<int>(binades.size) + 1;
  const double mean = kLeastHarm * 12 * binades.sum_of_squares() / binades.count();
  const int begin = std::clamp(CeilHalfLog2(mean), kLowestQuantum, kHighestQuantum);
  const int end = std::min(all_lost, kHighestQuantum + 1);
  if (begin < end) AddHarm(binades, begin - lowest, begin, static_cast<size_t>(end - begin), harm_);
  ++lost_[std::min(PlaceOf(std::max(all_lost, kLowestQuantum)), kQuanta)];
}

void ChannelSums::Add(ChannelTable& table) {
  const auto add = [&](auto sums, size_t first) { AddPlaces(sums, first); };
  table.IsPlain() ? table.FinishPlain(add) : table.Finish(add);
}

void ChannelSums::Add(std::span<const WideSums> sums, size_t first) { AddPlaces(sums, first); }

void ChannelSums::Merge(const ChannelSums& other) {
  channels_ += other.channels_;
  for (size_t i = 0; i < kQuanta; ++i) {
    harm_.low[i] += other.harm_.low[i];
    harm_.high[i] += other.harm_.high[i];
    harm_.worst[i] = std::max(harm_.worst[i], other.harm_.worst[i]);
    lost_[i] += other.lost_[i];
  }
}

// A larger quantum only loses more: each of its values is one of the smaller's.
ChannelCurves ChannelSums::ToCurves() const {
  if (channels_ == 0) return {};
  ChannelCurves curves;
  curves.channels = channels_;
  std::array<uint16_t, kQuanta> mean_codes, worst_codes;
  size_t kept = 0;
  uint64_t lost = 0;
  double mean = 0, worst = 0;
  for (size_t i = 0; i < kQuanta; ++i) {
    lost += lost_[i];
    if (kept == 0) {
      curves.first = kLowestQuantum + static_cast<int>(i);
      if (lost == 0 && harm_.worst[i] == 0) continue;  // nothing yet
    }
    const double sum = harm_.SumAt(i) + static_cast<double>(lost);
    mean = std::max(mean, sum / static_cast<double>(channels_));
    worst = lost > 0 ? 1 : std::max(worst, harm_.worst[i]);
    const uint16_t code = CodeOf(mean), worst_code = CodeOf(worst);
    if (code == 0 && worst_code == 0) break;
    if (kept == 0 && worst_code == ChannelCurves::kNothing) continue;
    mean_codes[kept] = code;
    worst_codes[kept++] = worst_code;
  }
  curves.mean.assign(mean_codes.begin(), mean_codes.begin() + kept);
  curves.worst.assign(worst_codes.begin(), worst_codes.begin() + kept);
  return curves;
}

}  // namespace dlsim
