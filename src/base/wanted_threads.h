// SPDX-License-Identifier: Apache-2.0
// For files that are compiled without OpenMP, too.
#pragma once

namespace dlsim {

// Returns how many threads OpenMP would use by its settings and the processors that there are; one
// in a build without it.
int WantedThreads();

}  // namespace dlsim
