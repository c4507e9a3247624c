// SPDX-License-Identifier: Apache-2.0
// The keys that all Cerebras configurations share: loss scaling, clipping, backend.
#pragma once

#include <array>
#include <string_view>

#include "sim/config/config_block.h"
#include "sim/config/training_config.h"

namespace dlsim::sim {

// The values of fp16_type.
inline constexpr std::array<std::string_view, 3> kHalfTypes = {"float16", "bfloat16", "cbfloat16"};

// Returns the number format of a value of fp16_type.
std::string FormatOfHalfType(std::string_view fp16_type);

// Absent = the stack's default.
struct LossScaling {
  enum class Factor { kStatic, kDynamic, kTfDynamic };
  Factor factor = Factor::kStatic;
  std::optional<ConfigNumber> static_scale;  // loss_scaling_factor as a number
  std::optional<ConfigNumber> initial_loss_scale, min_loss_scale, max_loss_scale;
  std::optional<int64_t> steps_per_increase;

  bool dynamic() const { return factor != Factor::kStatic; }
  double scale() const { return static_scale ? static_scale->value : 1; }
};

enum class TfDynamic { kKnown, kUnknown };

// Reads loss_scaling_factor, initial_loss_scale, steps_per_increase, min_ and max_loss_scale.
LossScaling ReadLossScaling(const ConfigBlock& block, TfDynamic tf_dynamic);

// Refuses min_loss_scale above max_loss_scale, where 0 and absent mean these defaults.
void RequireOrder(const ConfigBlock& block, const LossScaling& scaling, double default_min,
                  double default_max);

// Reads max_gradient_norm and max_gradient_value as the Model Zoo's PyTorch trainers check them.
Clipping ReadTorchClipping(const ConfigBlock& block);

// Returns the settings of policy cerebras-2.10.
ConfigPolicy CerebrasScaler(const LossScaling& scaling, std::string_view fp16_type);

// Returns the torch scaler that the Model Zoo makes on GPUs; `default_init` as its version does.
ConfigPolicy GpuScaler(const LossScaling& scaling, std::string_view default_init,
                       std::vector<std::string>& notes);

inline constexpr const char* kPrecisionOptLevelNote =
    "precision_opt_level has no effect on a replay";

// Returns model.mixed_precision of the layouts before the trainer, which the documents of release
// 1.6 have in `training`.
bool ReadMixedPrecision(const ConfigBlock& file);

// Returns csconfig.use_cbfloat16 of release 1.6; refuses it without mixed precision.
bool ReadUseCbfloat16(const ConfigBlock& file, bool mixed_precision);

// Returns policy static at 1.
ConfigPolicy NoScaler();

// Returns the backend that the value names, in upper or lower case, if there is one.
std::optional<Backend> ReadBackend(const ConfigBlock& block, std::string_view key);

// Adds `key=value` if there is a number.
void AddSetting(ConfigPolicy& policy, std::string_view key,
                const std::optional<ConfigNumber>& value);

}  // namespace dlsim::sim
