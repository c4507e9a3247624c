// SPDX-License-Identifier: Apache-2.0
// How much of a command's work one thread does alone, and what that leaves of many cores.
#pragma once

namespace dlsim::sim {

// The share of all work that is done while other threads have none. In the model, either one thread
// works or all `threads` do: cpu = serial + parallel, wall = serial + parallel / threads. Time that
// other programs take counts as serial, and threads that spin while they wait count as working.
double SerialShare(double wall_seconds, double cpu_seconds, int threads);

// The share of `cores` cores that work then keeps busy, by Amdahl's law.
double PredictedEfficiency(double serial_share, int cores);

}  // namespace dlsim::sim
