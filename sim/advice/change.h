// SPDX-License-Identifier: Apache-2.0
// What to change where a format fails: the parts of the model to keep in float32.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/sim/advice.h"
#include "dlsim/sim/step.h"

namespace dlsim::sim {

// Parts of a model that are kept in float32: names or globs (fnmatch) of modules, whose parts are
// kept with them, and of operations that a module's own forward calls, `<module>/<operation>`.
class KeptUnits {
 public:
  explicit KeptUnits(std::span<const std::string> names);

  // Whether a recorded tensor is of such a part.
  bool Has(std::string_view tensor) const;

 private:
  std::set<std::string, std::less<>> names_;
  std::vector<std::string> globs_;
};

// Returns the source as if parts of the model had been kept in float32: without their tensors.
// Throws UsageError for a name of which the recording has no tensor.
StepSource KeptInFloat32(StepSource source, std::span<const std::string> names);

// Returns what a shadow says if these parts are kept: where all of its plan is, that it holds.
Shadow WithKept(Shadow shadow, std::span<const std::string> names);

// Fills in FormatAdvice::change and ::instead of formats that fail, and renews Advice::lines. Steps
// through the source again for each plan of the recorder's.
void AddChanges(const StepSource& source, const AdviceRequest& request,
                const ReplayOptions& options, Advice& advice);

}  // namespace dlsim::sim
