// SPDX-License-Identifier: Apache-2.0
// How many threads compute, also for files that are compiled without OpenMP.
#pragma once

namespace dlsim {

// Returns how many threads OpenMP would use by its settings and the processors that there are; one
// in a build without it.
int WantedThreads();

// Sets what WantedThreads returns from now on on the calling thread. Without OpenMP: no effect.
void SetWantedThreads(int count);

}  // namespace dlsim
