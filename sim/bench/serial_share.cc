// SPDX-License-Identifier: Apache-2.0
#include "sim/bench/serial_share.h"

#include <algorithm>

namespace dlsim::sim {

double SerialShare(double wall_seconds, double cpu_seconds, int threads) {
  if (threads <= 1 || cpu_seconds <= 0) return 1;
  const double count = threads;
  const double serial = (count * wall_seconds - cpu_seconds) / (count - 1);
  return std::clamp(serial / cpu_seconds, 0.0, 1.0);
}

double PredictedEfficiency(double serial_share, int cores) {
  return 1 / (1 + serial_share * (static_cast<double>(cores) - 1));
}

}  // namespace dlsim::sim
