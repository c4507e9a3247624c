// SPDX-License-Identifier: Apache-2.0
#include "src/profile/curve_code.h"

#include <limits>

namespace dlsim {
namespace {

// Quanta of float32 have such exponents; see ChannelSums.
constexpr int kMostExponent = 200;
constexpr size_t kMostPoints = 2 * kMostExponent;

// Below where it loses much, a curve falls two binades of harm in one of the quantum.
constexpr int kUsualFall = 2 * static_cast<int>(ChannelCurves::kCodesPerBinade);

int CodeAsNumber(uint16_t code) {
  return code == ChannelCurves::kNothing ? ChannelCurves::kMostCode + 1 : code;
}

void PutCodes(const std::vector<uint16_t>& codes, std::string& out) {
  int expected = 0;
  for (const uint16_t code : codes) {
    const int number = CodeAsNumber(code);
    PutVarint(ZigZag(number - expected), out);
    expected = number - kUsualFall;
  }
}

std::vector<uint16_t> TakeCodes(size_t count, ByteReader& in) {
  std::vector<uint16_t> codes;
  int64_t expected = 0, most = ChannelCurves::kMostCode + 1;
  for (size_t i = 0; i < count; ++i) {
    const int64_t difference = in.Signed();
    const bool plausible =
        difference >= -kMostExponent * kUsualFall && difference <= kMostExponent * kUsualFall;
    const int64_t number = plausible ? expected + difference : -1;
    in.Require(number >= 0 && number <= most, "damaged: a curve of channels that rises");
    codes.push_back(number > ChannelCurves::kMostCode ? ChannelCurves::kNothing
                                                      : static_cast<uint16_t>(number));
    most = number;
    expected = number - kUsualFall;
  }
  return codes;
}

}  // namespace

void PutCurves(std::span<const ChannelCurves> curves, std::string& out) {
  for (const ChannelCurves& one : curves) {
    PutVarint(one.channels, out);
    if (!one.known()) continue;
    PutVarint(ZigZag(one.first), out);
    PutVarint(one.mean.size(), out);
    PutCodes(one.mean, out);
    PutCodes(one.worst, out);
  }
}

std::vector<ChannelCurves> TakeCurves(size_t count, ByteReader& in) {
  std::vector<ChannelCurves> curves(count);
  for (ChannelCurves& one : curves) {
    one.channels = in.Varint();
    if (!one.known()) continue;
    const int64_t first = in.Signed();
    const uint64_t points = in.Varint();
    in.Require(first >= -kMostExponent && first <= kMostExponent && points <= kMostPoints,
               "damaged: a curve of channels beyond float32");
    one.first = static_cast<int>(first);
    one.mean = TakeCodes(static_cast<size_t>(points), in);
    one.worst = TakeCodes(static_cast<size_t>(points), in);
  }
  return curves;
}

uint64_t MaxCurveBytes(uint64_t count) {
  constexpr uint64_t kMost = 10 + 2 + 2 + 2 * kMostPoints * 3;
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  return count > kMax / kMost ? kMax : count * kMost;
}

}  // namespace dlsim
