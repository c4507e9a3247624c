// SPDX-License-Identifier: Apache-2.0
// Which recorded activation gradients are the gradient of the loss itself: training keeps the loss
// in float32, so that they bound no loss scale. And what metadata say of how a training went.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "dlsim/profile.h"
#include "dlsim/sim/gradient_source.h"
#include "dlsim/trace.h"

namespace dlsim::sim {

// Whether a tensor can be the gradient of a loss, as far as name, role and shape tell: of an output
// without dimensions, or of an output of the model itself of shape (1,).
bool MayBeLoss(const std::string& name, Role role, const std::vector<uint64_t>& shape);

// Returns the names of those whose unscaled gradient is 1, or 1/n of n micro-steps, alike at all
// steps that are looked at: up to 64, all over the run. `load` returns a step with the tensors that
// may be losses, and may return others. What cannot be read is no loss: the reader reports it.
std::set<std::string> FindLosses(size_t steps, const std::function<ProfileStep(size_t)>& load);

// Returns whether the metadata of a step have a loss that is NaN or infinite.
bool HasBrokenLoss(const std::map<std::string, std::string>& metadata);

// What the metadata of a step say of kRefusedKey; nothing if that is no number.
RefusedSteps RefusedStepsIn(const std::map<std::string, std::string>& metadata);

// Says that they were left out.
void NoteLosses(const std::set<std::string>& losses, std::vector<std::string>& notes);

}  // namespace dlsim::sim
