// SPDX-License-Identifier: Apache-2.0
#include "sim/config/half_precision.h"

#include "sim/config/cerebras_keys.h"

namespace dlsim::sim {

Precision ReadSwitches(const ConfigBlock& block, std::string_view fp16, std::string_view bf16) {
  const bool is_fp16 = block.Bool(fp16).value_or(false);
  const bool is_bf16 = block.Bool(bf16).value_or(false);
  if (is_fp16 && is_bf16) {
    block.Refuse(bf16, "both fp16 and bf16 are on", "at most one, as the original does");
  }
  return is_fp16 ? Precision::kFp16 : is_bf16 ? Precision::kBf16 : Precision::kFloat32;
}

void ApplyPrecision(Precision precision, ConfigPolicy scaler, TrainingConfig& config) {
  if (precision == Precision::kFp16) {
    config.formats = {"fp16"};
    config.policies = {std::move(scaler)};
    return;
  }
  const bool bf16 = precision == Precision::kBf16;
  if (bf16) config.formats = {"bf16"};
  config.policies = {NoScaler()};
  config.notes.push_back(bf16 ? "bf16: no loss scaling"
                              : "neither fp16 nor bf16 is enabled: this run computes in float32");
}

void ReadNormLimit(const ConfigBlock& block, std::string_view key, std::optional<double> fallback,
                   TrainingConfig& config) {
  const std::optional<ConfigNumber> limit = block.Number(key, NumberRange::kNotNegative);
  const bool is_null = block.node().Find(key) != nullptr && !limit;
  if (limit ? limit->value > 0 : fallback && !is_null) {
    config.clipping.max_norm = limit ? limit->value : *fallback;
  }
}

}  // namespace dlsim::sim
