// SPDX-License-Identifier: Apache-2.0
// Formats with scales of their own (scaled_format.h) that training configurations name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/config/config_block.h"
#include "sim/config/training_config.h"

namespace dlsim::sim {

// Returns the format of TransformerEngine's layers under megatron.core, which Megatron-LM and NeMo
// configure by the same keys (fp8_recipe, fp8_amax_history_len, fp8_amax_compute_algo, fp8_margin).
// `elements` is "e4m3" or "hybrid". Empty if the recipe is code; adds notes on what is not
// simulated.
std::string MegatronFp8(const ConfigBlock& arguments, std::string_view elements,
                        std::vector<std::string>& notes);

// Sets the format of the `fp8_config` of Accelerate's file, whose mixed_precision is fp8, and adds
// notes on what is not simulated. Refuses what Accelerate, TransformerEngine or dlsim do not take.
void ReadAccelerateFp8(const ConfigBlock& file, TrainingConfig& config);

// The same for the converters of torchtitan, whose tables name recipes of torchao.
void ReadTorchaoRecipes(const ConfigBlock& file, TrainingConfig& config);

}  // namespace dlsim::sim
