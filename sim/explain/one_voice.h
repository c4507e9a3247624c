// SPDX-License-Identifier: Apache-2.0
// What a log says more than once: by several lines about one overflow, by ranks, by two counters of
// the same step. Each counts once.
#pragma once

#include "sim/explain/read_log.h"

namespace dlsim::sim {

// Drops what is no loss scale: negative numbers, which mean that there is none; numbers rounded so
// far that no scale is known; and keys called "scale" whose values are not those of a loss scale.
void DropOtherScales(LogEvents& log);

// Leaves one message per overflow and one record per step. Throws InputError if two engines of
// DeepSpeed count the same steps.
void KeepOneVoice(LogEvents& log);

}  // namespace dlsim::sim
