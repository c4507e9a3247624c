// SPDX-License-Identifier: Apache-2.0
// All that a training log says about its loss scale: the command `dlsim explain`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dlsim/format.h"
#include "sim/base/json_value.h"
#include "sim/explain/brackets.h"
#include "sim/explain/diagnosis.h"
#include "sim/explain/infer_policy.h"
#include "sim/explain/scale_path.h"
#include "sim/explain/skip_summary.h"
#include "sim/explain/what_if.h"

namespace dlsim::sim {

// Another policy to run on the log; `policy` empty: the first that reproduces it.
struct WhatIfRequest {
  std::vector<std::string> policies = {}, settings = {};
};

struct Explanation {
  std::string format = {};  // in which the gradients were, for the brackets
  ScalePath path = {};
  Inference inference = {};
  bool counted = false;                // `steps` has every step; otherwise the overflows only
  std::vector<LoggedStep> steps = {};  // of the likeliest match, else as far as the log states them
  std::vector<GradientBracket> brackets = {};
  BracketTotals totals = {};
  SkipSummary skips = {};
  Diagnosis diagnosis = {};
  std::optional<MinimumForecast> minimum = {};
  std::vector<WhatIf> what_if = {};
};

// Throws UsageError for policies that cannot run on a log, or for a what-if on a log without
// numbers of steps.
Explanation Explain(ScalePath path, const NamedFormat& format, const WhatIfRequest& request,
                    const InferenceLimits& limits = {});

// Returns the report: the lines that answer, then the evidence.
std::string FormatExplanation(const Explanation& explanation);

// Returns the document dlsim.explain/1.
Json JsonExplanation(const Explanation& explanation);

// Returns the path as CSV: step (or overflow, where steps are not counted), scale, skipped, line.
std::string CsvExplanation(const Explanation& explanation);

}  // namespace dlsim::sim
