// SPDX-License-Identifier: Apache-2.0
// The two runs that are compared, each a trace or a profile, and the way through their steps.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/profile_file.h"
#include "dlsim/sim/gradient_source.h"
#include "dlsim/trace.h"
#include "sim/align/align_steps.h"
#include "sim/diff/compared_step.h"
#include "sim/replay/file_state.h"
#include "sim/replay/trace_source.h"

namespace dlsim::sim {

// One of them, opened.
struct DiffRun {
  std::string path;
  std::string tensors;                     // a pattern (fnmatch); others are not looked at
  std::unique_ptr<TraceReader> trace;      // this ...
  std::unique_ptr<ProfileReader> profile;  // ... or that
  std::unique_ptr<TraceSource> source;     // of the trace
  SourceFacts facts;
  std::vector<int64_t> steps;  // numbers, ascending
};

struct DiffRuns {
  DiffRun a, b;

  // False: histograms are compared, as one of them is a profile.
  bool has_elements() const { return a.trace != nullptr && b.trace != nullptr; }
};

// Opens both. A trace that is compared with a profile is read as the profile was made: with its
// accumulation. Throws Error for a bad file.
DiffRuns OpenDiffRuns(const std::string& a, const std::string& b, const TraceOptions& options);

// Compares the steps of each pair in turn; the next one is opened meanwhile. Throws Error for a bad
// file.
void CompareRuns(const DiffRuns& runs, const std::vector<AlignedSteps::Pair>& pairs,
                 const std::function<void(size_t pair, const ComparedStep& step)>& visit);

}  // namespace dlsim::sim
