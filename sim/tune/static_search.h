// SPDX-License-Identifier: Apache-2.0
// Which loss scales between the powers of two are worth a look, and the best one to keep for ever.
#pragma once

#include <vector>

#include "sim/tune/scale_table.h"

namespace dlsim::sim {

// Between two powers of two the best scale is one at which some step just does not overflow, as a
// higher scale loses less: returns such scales, or what the ladder has.
std::vector<float> ScalesBetweenPowers(const TuneSource& source, const ScaleTable& table);

// Measures those that may be better static scales than all that the table has.
void MeasureStaticScales(const TuneSource& source, ScaleTable& table);

}  // namespace dlsim::sim
