// SPDX-License-Identifier: Apache-2.0
// What `dlsim --version` prints.
#pragma once

#include <string>

namespace dlsim::sim {

// Returns "dlsim 0.1.0 (commit 85146f5, SIMD AVX2, with OPENMP)": the commit if the program was
// built from a checkout, with "modified" after it if files of the commit were changed.
std::string VersionText();

}  // namespace dlsim::sim
