// SPDX-License-Identifier: Apache-2.0
// How much the channels of a gradient lose in a format, as a function of the distance between the
// smallest values of the format.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dlsim/codec.h"
#include "dlsim/trace.h"

namespace dlsim {

// A tensor as outer x channels x inner elements in memory order. The channels of a parameter are
// its rows (the first axis); those of an activation are its features: the second axis of four or
// more, else the last. A vector is one channel: of a bias some elements may be but rounding noise,
// as those of keys in attention, and a sample of a tensor is a vector.
struct ChannelLayout {
  uint64_t outer = 1, channels = 1, inner = 1;

  friend bool operator==(const ChannelLayout&, const ChannelLayout&) = default;
};
ChannelLayout LayoutOf(Role role, const std::vector<uint64_t>& shape);

// The harm of channels above the format's rounding floor, as a function of the quantum: the
// distance, before scaling, of the smallest values that the format tells apart. The harm of a
// channel is sum (q(g) - g)^2 / sum g^2 over its elements: exact for elements below two quanta, to
// nearest; for those above it is expected, quantum^2 / 12 each (Widrow, 1956). Channels of zeros
// are not counted.
//
// One curve serves all formats and scales, and is kept in steps of a binade of the quantum and of
// a 64th of a binade of harm, so that a trace and its profile agree.
struct ChannelCurves {
  // A code is -64 log2(harm), rounded to the nearest integer. Harm below 2^-20 is kept as none.
  static constexpr double kCodesPerBinade = 64;
  static constexpr uint16_t kMostCode = 20 * 64;
  static constexpr uint16_t kNothing = 0xFFFF;  // the code of no harm

  uint64_t channels = 0;  // that are not zero; 0 = not known
  int first = 0;          // exponent of the first quantum: below it nothing is lost
  // By quantum, up to where all is lost: the mean over the channels, and the channel that loses
  // most.
  std::vector<uint16_t> mean, worst;

  bool known() const { return channels > 0; }

  // Returns the harm at a quantum, given its binary logarithm; between two of the curve from their
  // logarithms. Nothing where nothing is known.
  double MeanAt(double log_quantum) const { return HarmAt(mean, log_quantum); }
  double WorstAt(double log_quantum) const { return HarmAt(worst, log_quantum); }

  friend bool operator==(const ChannelCurves&, const ChannelCurves&) = default;

 private:
  double HarmAt(const std::vector<uint16_t>& codes, double log_quantum) const;
};

// Returns the binary logarithm of the quantum of a conversion at a scale; nothing for those whose
// harm does not follow from the curves: they keep subnormals and round to nearest.
std::optional<double> LogQuantum(const Conversion& conversion, double scale);

}  // namespace dlsim
