// SPDX-License-Identifier: Apache-2.0
// How far a run is from the float32 one, over the way that this one went.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>

namespace dlsim::sim {

// Sums over elements; those that are not finite in one of the runs are left out.
class Distance {
 public:
  void Add(std::span<const float> start, std::span<const float> reference,
           std::span<const float> run) {
    for (size_t i = 0; i < start.size(); ++i) {
      const double way = double{reference[i]} - double{start[i]};
      const double off = double{run[i]} - double{reference[i]};
      if (!std::isfinite(way)) continue;
      if (!std::isfinite(off)) {
        ++nonfinite_;
        continue;
      }
      way_ += way * way;
      off_ += off * off;
      along_ += (way + off) * way;
    }
  }

  // Nothing if the float32 run did not move.
  std::optional<double> drift() const {
    if (way_ == 0) return std::nullopt;
    return std::sqrt(off_ / way_);
  }
  std::optional<double> progress() const {
    if (way_ == 0) return std::nullopt;
    return along_ / way_;
  }
  uint64_t nonfinite() const { return nonfinite_; }

 private:
  double way_ = 0, off_ = 0, along_ = 0;
  uint64_t nonfinite_ = 0;
};

// Returns the sum of the second moment over that of the float32 run; nothing if that is zero or not
// finite.
inline std::optional<double> SecondBias(std::span<const float> reference,
                                        std::span<const float> run) {
  double expected = 0, found = 0;
  for (size_t i = 0; i < run.size(); ++i) {
    expected += double{reference[i]};
    found += double{run[i]};
  }
  if (!(expected > 0) || !std::isfinite(expected) || !std::isfinite(found)) return std::nullopt;
  return found / expected;
}

}  // namespace dlsim::sim
