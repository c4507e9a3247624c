// SPDX-License-Identifier: Apache-2.0
// How OpenMP's threads wait between loops.
#pragma once

namespace dlsim::sim {

// By default they spin for milliseconds, which steals the time of whatever else runs. OpenMP reads
// the environment while it is loaded, before main: a command line that names much to read restarts
// the program, with threads that sleep after some microseconds, unless there is but one or its
// user has said how they wait. To be called before anything is read or opened. Returns otherwise.
void WaitWithoutSpinning(int argc, char** argv);

}  // namespace dlsim::sim
