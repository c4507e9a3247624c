// SPDX-License-Identifier: Apache-2.0
// For the command, whose user may say how many threads compute.
#pragma once

namespace dlsim {

// Sets what WantedThreads returns from now on on the calling thread. Without OpenMP: no effect.
void SetWantedThreads(int count);

}  // namespace dlsim
