// SPDX-License-Identifier: Apache-2.0
// A DeepSpeed configuration inside that of another stack, as a table or the path of a file, whose
// "auto" values that stack fills in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sim/config/config_block.h"
#include "sim/config/half_precision.h"
#include "sim/config/training_config.h"

namespace dlsim::sim {

// What takes the place of "auto"; absent: it stays.
struct DeepSpeedFill {
  Precision precision = Precision::kFloat32;
  bool fp16 = false, bf16 = false;  // of fp16.enabled and bf16.enabled
  std::optional<std::string> gradient_clipping;
  std::optional<int64_t> gradient_accumulation_steps, micro_batch_size;
  UpdateSettings adam = {};  // of optimizer.params, and warmup_max_lr of the schedule
  bool must_match = false;   // a value that differs is refused, as by Hugging Face's trainer
};

// Refuses a run whose DeepSpeed file is not read, with its name if `deepspeed_config` tells it.
[[noreturn]] void RefuseDeepSpeedRun(const ConfigBlock& arguments);

// Reads the table, or the file that the path names: seen from the file of `owner`, else from the
// working directory. Throws Error (exit code 2) if it is neither, and as ReadConfigFile does.
TrainingConfig ReadOwnDeepSpeed(const ConfigBlock& owner, std::string_view key,
                                const DeepSpeedFill& fill, const ConfigOptions& options);

}  // namespace dlsim::sim
