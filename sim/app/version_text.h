// SPDX-License-Identifier: Apache-2.0
// What the command says of itself.
#pragma once

#include <string>

namespace dlsim::sim {

// Returns "dlsim 0.1.0 (commit 85146f5, SIMD AVX2, with OPENMP)": the commit if the program was
// built from a checkout, with "modified" after it if files of the commit were changed.
std::string VersionText();

// Returns the JSON of `dlsim --build-info`, which tells this program from another that is timed.
std::string BuildInfoJson();

}  // namespace dlsim::sim
