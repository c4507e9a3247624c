// SPDX-License-Identifier: Apache-2.0
// The files of several data-parallel ranks as one recording, reduced while it is read.
#pragma once

#include <vector>

#include "dlsim/trace.h"

namespace dlsim {

// Returns one recording of all `ranks`, which are in ascending order and have the same parameter
// gradients; a single one stays as it is. Parameter gradients are reduced. Activations and their
// gradients belong to the batch of their rank, so those of all ranks follow each other in one
// tensor. Parameters are the same on all ranks: those of the first rank are taken.
Recording ReduceRanks(std::vector<Recording> ranks, RankReduction reduction);

}  // namespace dlsim
