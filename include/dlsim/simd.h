// SPDX-License-Identifier: Apache-2.0
// Which SIMD instruction sets the kernels use; for reports, tests and benchmarks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dlsim {

// Returns the names of all SIMD targets that this machine can run, best first, such as "AVX3".
std::vector<std::string> SupportedSimdTargets();

// Returns the name of the target that the kernels use now.
std::string CurrentSimdTarget();

// Makes all kernels use the named target from now on; empty = the best one. Every target gives the
// same bits. Throws Error (exit code 2) if the machine cannot run it. Not thread-safe.
void UseSimdTarget(std::string_view name);

}  // namespace dlsim
