// SPDX-License-Identifier: Apache-2.0
// The numbers of Adam in the Model Zoo's configurations.
#pragma once

#include "sim/config/update_formats.h"

namespace dlsim::sim {

// `init`: trainer.init, with the tables optimizer and schedulers.
UpdateSettings ModelZooAdam(const ConfigBlock& init);

// `optimizer`: that table of the files before the trainer.
UpdateSettings OldModelZooAdam(const ConfigBlock& optimizer);

}  // namespace dlsim::sim
