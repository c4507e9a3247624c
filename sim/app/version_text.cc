// SPDX-License-Identifier: Apache-2.0
#include "sim/app/version_text.h"

#include "dlsim/simd.h"
#include "sim/dlsim_commit.h"

namespace dlsim::sim {

std::string VersionText() {
  const std::string commit = DLSIM_COMMIT;
  return "dlsim " DLSIM_VERSION " (" + (commit.empty() ? "" : "commit " + commit + ", ") + "SIMD " +
         CurrentSimdTarget() + ", " DLSIM_FEATURES ")";
}

}  // namespace dlsim::sim
