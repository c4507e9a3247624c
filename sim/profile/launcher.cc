// SPDX-License-Identifier: Apache-2.0
#include "sim/profile/launcher.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace dlsim::sim {
namespace {

// Returns the number that an environment variable holds, else 0.
int NumberIn(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return 0;
  const std::string_view text = value;
  int number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace

Launch LaunchOfThisProcess() {
  if (NumberIn("OMPI_COMM_WORLD_SIZE") > 1 || NumberIn("PMI_SIZE") > 1) return Launch::kMpi;
  if (NumberIn("SLURM_STEP_NUM_TASKS") <= 1) return Launch::kAlone;
  return std::getenv("PMIX_RANK") != nullptr ? Launch::kMpi : Launch::kSeveral;
}

}  // namespace dlsim::sim
