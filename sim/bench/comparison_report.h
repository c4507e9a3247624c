// SPDX-License-Identifier: Apache-2.0
// A comparison as text and as JSON (schema dlsim.bench.compare/1).
#pragma once

#include <string>

#include "sim/bench/comparison.h"

namespace dlsim::sim {

// Returns files, rule, one row per kernel (worst first) and a summary line.
std::string FormatComparison(const BenchmarkFile& base, const BenchmarkFile& current,
                             const Comparison& comparison);

Json ComparisonJson(const BenchmarkFile& base, const BenchmarkFile& current,
                    const Comparison& comparison);

}  // namespace dlsim::sim
