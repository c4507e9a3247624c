// SPDX-License-Identifier: Apache-2.0
// The command line of dlsim_bench.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "bench/name_filter.h"
#include "bench/workload.h"
#include "sim/base/device_choice.h"

namespace dlsim::bench {

using sim::DeviceChoice;

// A slow-down to be found by comparators: real work that is not reported.
struct Plant {
  double percent = 0;
  NameFilter filter;

  // Number of elements that the workload converts again.
  size_t Extra(const Workload& workload, size_t elements) const;
};

struct Options {
  bool help = false;
  bool lists_names = false;
  bool prints_json = false;
  bool writes_file = false;
  std::vector<int> threads = {1};
  std::vector<std::string> targets;  // SIMD targets, best first
  size_t dram_mib = 0;
  DeviceChoice device;  // kAuto = the CPU
  NameFilter filter;
  Plant plant;
  std::string instructions;            // empty, a name, or "all"
  std::vector<std::string> remaining;  // the program's name and Google Benchmark's options
};

// Throws Error (exit code 2) for what dlsim_bench does not take.
Options ParseOptions(int argc, char** argv);

// The text of --help.
std::string HelpText();

}  // namespace dlsim::bench
