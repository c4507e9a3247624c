// SPDX-License-Identifier: Apache-2.0
// What to change where a format fails: the parts of the model to keep in float32.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "dlsim/sim/advice.h"
#include "dlsim/sim/step.h"
#include "sim/advice/forward_graph.h"

namespace dlsim::sim {

// Returns the graph of the first step that has one.
std::optional<ForwardGraph> GraphOf(const StepSource& source);

// Which tensors of a recording are in 16 bits if parts of the model are kept in float32. Without a
// graph those parts alone are taken out, and not what follows from them.
class Float32Parts {
 public:
  // The graph, null for none, must live as long; `kept` as keep_float32 takes it.
  Float32Parts(const ForwardGraph* graph, KeptUnits kept);

  // Whether the tensor of this name, with its role, has 16 bits no more.
  bool Has(const std::string& tensor, Role role) const;

 private:
  const ForwardGraph* graph_;
  KeptUnits kept_;
  std::set<std::string> narrow_;
};

// Returns the source as if parts of the model had been kept in float32: without the tensors that
// then have 16 bits no more. Throws UsageError for a name of which the recording has no operation.
StepSource KeptInFloat32(StepSource source, std::span<const std::string> names);

// Fills in FormatAdvice::change and ::instead of formats that fail or are at risk in forward under
// autocast, and renews Advice::lines. Steps through the source again where gradients fail.
void AddChanges(const StepSource& source, const AdviceRequest& request,
                const ReplayOptions& options, Advice& advice);

}  // namespace dlsim::sim
