// SPDX-License-Identifier: Apache-2.0
// What dlsim explain finds in the text of a log.
#pragma once

#include <array>
#include <string>

#include "sim/explain/explanation.h"
#include "sim/explain/read_log.h"
#include "tests/support/trace_test_util.h"

namespace dlsim::sim {

inline Explanation ExplainText(const std::string& text) {
  const TempDir dir;
  const std::array logs = {dir.Write("run.log", text)};
  return Explain(BuildPath(ReadLogs(logs)), ParseFormat("fp16"), {});
}

}  // namespace dlsim::sim
