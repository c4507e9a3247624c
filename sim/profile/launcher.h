// SPDX-License-Identifier: Apache-2.0
// What the environment tells of the launcher that started this process.
#pragma once

#include <cstdint>

namespace dlsim::sim {

// How this process was started.
enum class Launch : uint8_t {
  kAlone,    // alone
  kMpi,      // as one of several that can talk to each other by MPI
  kSeveral,  // as one of several that cannot
};

// Looks at what the mpirun of Open MPI and of MPICH and Slurm's srun set for the processes that
// they start; a batch script of Slurm is one process.
Launch LaunchOfThisProcess();

}  // namespace dlsim::sim
