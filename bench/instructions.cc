// SPDX-License-Identifier: Apache-2.0
#include "bench/instructions.h"

#include <cstddef>
#include <cstdio>
#include <functional>
#include <string>

#include "dlsim/error.h"

#ifdef DLSIM_HAVE_CALLGRIND
#include <valgrind/callgrind.h>
#endif

namespace dlsim::bench {
namespace {

// Calls before the one that counts, so that the allocator's lists are as in the long run, whatever
// other benchmarks left in them.
[[maybe_unused]] constexpr int kWarmUpCalls = 8;

}  // namespace

void CountInstructions(const std::vector<Workload>& workloads, const Options& options,
                       ArrayStore& store) {
#ifdef DLSIM_HAVE_CALLGRIND
  for (const Workload& workload : workloads) {
    const std::string name = workload.Name();
    Activate(workload);
    const size_t again = options.plant.Extra(workload, store.Elements(workload.size));
    const std::function<void()> call = WholeCall(workload, again, store, 0);
    for (int i = 0; i < kWarmUpCalls; ++i) call();
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_ZERO_STATS;
    call();
    CALLGRIND_STOP_INSTRUMENTATION;
    CALLGRIND_DUMP_STATS_AT(name.c_str());
    std::printf("%s\n", name.c_str());
  }
#else
  (void)workloads, (void)options, (void)store;
  throw UsageError("--instructions", "built without valgrind/callgrind.h");
#endif
}

}  // namespace dlsim::bench
