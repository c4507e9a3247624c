// SPDX-License-Identifier: Apache-2.0
// How OpenMP's threads wait between loops: asleep after some microseconds, unless the user has said
// how. By default they spin for milliseconds, which steals the time of whatever else runs: on a
// busy machine they take three times the processor time of the work.
#include <cstdlib>
#include <initializer_list>

namespace {

// OpenMP reads the environment once. libgomp does so in a constructor, which is part of the program
// (sim/CMakeLists.txt) and comes after this one; LLVM's library does before the first loop.
constexpr int kFirst = 101;

[[gnu::constructor(kFirst)]] void WaitWithoutSpinning() {
  for (const char* const name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}) {
    if (std::getenv(name) != nullptr) return;
  }
  setenv("OMP_WAIT_POLICY", "passive", 0);
  setenv("GOMP_SPINCOUNT", "1000", 0);
}

}  // namespace
