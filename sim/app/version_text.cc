// SPDX-License-Identifier: Apache-2.0
#include "sim/app/version_text.h"

#include <nlohmann/json.hpp>

#include "dlsim/simd.h"
#include "sim/base/json_value.h"
#include "sim/dlsim_commit.h"

namespace dlsim::sim {

std::string VersionText() {
  const std::string commit = DLSIM_COMMIT;
  return "dlsim " DLSIM_VERSION " (" + (commit.empty() ? "" : "commit " + commit + ", ") + "SIMD " +
         CurrentSimdTarget() + ", " DLSIM_FEATURES ")";
}

std::string BuildInfoJson() {
  return DumpJson({{"simd_target", SupportedSimdTargets().front()},
                   {"compiler", DLSIM_COMPILER},
                   {"compiler_flags", DLSIM_COMPILER_FLAGS},
                   {"dlsim_version", DLSIM_VERSION}});
}

}  // namespace dlsim::sim
