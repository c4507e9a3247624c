// SPDX-License-Identifier: Apache-2.0
// The kernels of the CPU as benchmarks.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "bench/data_sets.h"

namespace dlsim::bench {

struct Kernel {
  std::string name;  // Kernel/format/mode
  size_t bytes = 0;  // that an element moves
  // Returns what converts a data set once, ready to be called again and again.
  std::function<std::function<void()>(Arrays& arrays, DataSet data)> bind;
};

// Encoding, decoding, measuring and asking tables for the formats that have kernels of their own,
// scaled formats, and tabulating.
std::vector<Kernel> DlsimKernels();

// Loops that move the bytes of a conversion and compute nothing: what limits a kernel.
std::vector<Kernel> Streams();

}  // namespace dlsim::bench
