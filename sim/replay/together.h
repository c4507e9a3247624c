// SPDX-License-Identifier: Apache-2.0
// What the ranks of sharded training recorded, as one run: of tensors that are cut, each rank has a
// piece, `<parameter>.shard-1-of-4.grad`, and others lie whole on one rank. Tables of the pieces
// add up to that of the tensor.
#pragma once

#include <string>
#include <vector>

#include "dlsim/sim/step.h"

namespace dlsim::sim {

// Returns the folders that the ranks of sharded training wrote, `shard-<rank>-of-<ranks>`, by rank:
// of a folder that holds them, or all of `paths` if they are such. Empty if it is another trace.
// Throws InputError if a rank is missing, or if they are of several runs.
std::vector<std::string> FindShards(const std::vector<std::string>& paths);

// Returns the steps of all ranks as those of one run; `places` name the ranks in messages. The
// steps have no values, only tables. Throws InputError for ranks that do not have the same steps
// and micro-steps, as loading a step does for a tensor or piece that is there twice, a missing
// piece of a parameter or of its gradient, and pieces that do not fit.
//
// Metadata are those of the first rank that has a key, and lists of tensors name what any rank's
// name. A tensor has the shape of the whole if it was cut along the first dimension or as the
// metadata `shard_grid` say, {"fc.weight.grad": [[1, 4]]}: into 4 parts along dimension 1, and each
// of these by the next cut; piece numbers count the last cut fastest. Else it has lost its shape.
StepSource Together(std::vector<StepSource> ranks, std::vector<std::string> places);

}  // namespace dlsim::sim
