// SPDX-License-Identifier: Apache-2.0
// What the command says of itself.
#include "dlsim/convert.h"
#include "sim/app/commands.h"
#include "sim/base/rows.h"
#include "sim/dlsim_commit.h"

namespace dlsim::sim {

std::string VersionText() {
  const std::string commit = DLSIM_COMMIT;
  return "dlsim " DLSIM_VERSION " (" + (commit.empty() ? "" : "commit " + commit + ", ") + "SIMD " +
         CurrentSimdTarget() + ", " DLSIM_FEATURES ")";
}

std::string BuildInfoJson() {
  return JsonText([](RowSink& row) {
    row("simd_target", SupportedSimdTargets().front());
    row("compiler", DLSIM_COMPILER);
    row("compiler_flags", DLSIM_COMPILER_FLAGS);
    row("dlsim_version", DLSIM_VERSION);
  });
}

}  // namespace dlsim::sim
