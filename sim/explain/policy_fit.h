// SPDX-License-Identifier: Apache-2.0
// Whether a policy reproduces the recorded path: its real scaler runs along the log, on every way
// to place the overflows that the log allows.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dlsim/sim/policies.h"
#include "sim/explain/scale_path.h"

namespace dlsim::sim {

// One step of the path.
struct LoggedStep {
  double scale = 0;  // that the step used
  bool overflow = false;
  size_t line = 0;
  int64_t clean_before = 0;  // steps that are not listed, at least
};

// How one stretch was passed.
struct Way {
  int64_t clean = 0;                      // steps before the message, where their number is unknown
  std::vector<int64_t> overflow_at = {};  // offsets of the stretch's steps

  bool HasOnlyCountedSteps() const { return clean == 0 && overflow_at.empty(); }
};

// A way through a stretch with more than counted clean steps, which need no note.
struct NotedWay {
  size_t stretch = 0;
  std::optional<size_t> before = {};  // the one before it on the same path, in PolicyFit::ways
  Way way = {};
};

struct PolicyFit {
  size_t explained = 0;                // stretches that it reproduces, from the first on
  bool undecided = false;              // too many ways to place the overflows, or too much work
  uint64_t work = 0;                   // about how many steps were taken, on all ways
  size_t branches = 0;                 // ways that are left at the end, where they differ
  std::optional<LossScaler> end = {};  // after the last explained stretch
  std::vector<NotedWay> ways = {};     // on all paths
  std::optional<size_t> last = {};     // on the path that `end` is of
};

// Runs the scaler along the path, until more than `most_work` steps were taken: then the fit is
// undecided. A scale fits if the log would print it as it does.
PolicyFit FitPolicy(const LossScaler& scaler, const ScalePath& path, uint64_t most_work);

// Returns the work of a scaler that takes the path's counted steps on one way.
uint64_t WorkOfOneWay(const ScalePath& path);

// Returns the steps of one fitting way; the clean steps of unknown stretches are left out.
std::vector<LoggedStep> StepsOf(const LossScaler& scaler, const ScalePath& path,
                                const PolicyFit& fit);

}  // namespace dlsim::sim
