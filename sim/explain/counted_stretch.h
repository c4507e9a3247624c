// SPDX-License-Identifier: Apache-2.0
// Ways through a stretch whose number of steps is known.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/explain/branch.h"
#include "sim/explain/fit_work.h"
#include "sim/explain/scale_path.h"

namespace dlsim::sim {

// Takes clean steps from the step `at` of a stretch to that before `end`; false if one does not
// fit.
bool TakeCleanUntil(int64_t end, int64_t at, Branch& branch, Work& work);

// Takes the last step of a stretch, which overflows if one of the overflows is still to come.
bool TakeLast(const Stretch& stretch, Branch& branch);

// Returns the ways on through a stretch of which some steps overflow, in the order of `branches`,
// then of where the overflows lie. Of most that go on alike only the first is among them.
std::vector<Branch> AdvanceCounted(const Stretch& stretch, std::vector<Branch> branches,
                                   Work& work);

}  // namespace dlsim::sim
