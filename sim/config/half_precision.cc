// SPDX-License-Identifier: Apache-2.0
#include "sim/config/half_precision.h"

#include "sim/config/cerebras_keys.h"
#include "sim/config/shell_script.h"

namespace dlsim::sim {

bool ReadSwitch(const ConfigBlock& block, std::string_view key) {
  const ConfigNode* value = block.Find(key);
  if (value == nullptr) return false;
  if (value->kind == ConfigNode::Kind::kNumber) {
    const double number = block.Number(key, NumberRange::kAny)->value;
    if (number == 0 || number == 1) return number == 1;
  }
  if (value->kind == ConfigNode::Kind::kText) {
    block.Refuse(key, "text, which the original software always takes as true", "true or false",
                 DescribeNode(*value));
  }
  return *block.Bool(key);
}

Precision ReadSwitches(const ConfigBlock& block, std::string_view fp16, std::string_view bf16) {
  const bool is_fp16 = ReadSwitch(block, fp16);
  const bool is_bf16 = ReadSwitch(block, bf16);
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
  config.notes.emplace_back(bf16 ? "bf16: no loss scaling" : kFloat32Note);
}

std::string Lowered(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

bool IsInterpolated(const ConfigNode& value) {
  return value.kind == ConfigNode::Kind::kText && value.text.find("${") != std::string::npos;
}

void RequireUnquoted(const ConfigBlock& block, std::string_view key) {
  if (const ConfigNode* text = block.Find(key);
      text != nullptr && text->text.find(kUnknownText) != std::string::npos) {
    block.Text(key);  // refuses it
  }
  const ConfigNode* value = block.Find(key);
  if (value == nullptr || value->kind != ConfigNode::Kind::kText) return;
  if (IsInterpolated(*value)) {
    block.Refuse(key, "depends on other keys, which Hydra puts in",
                 "the config.yaml that it writes next to a run", DescribeNode(*value));
  }
  block.Refuse(key, "text in quotes, where the original software needs a number", "a number",
               DescribeNode(*value));
}

void ReadNormLimit(const ConfigBlock& block, std::string_view key, std::optional<double> fallback,
                   TrainingConfig& config) {
  const std::optional<ConfigNumber> limit = block.Number(key, NumberRange::kAny);
  const bool is_null = block.node().Find(key) != nullptr && !limit;
  if (limit ? limit->value > 0 : fallback && !is_null) {
    config.clipping.max_norm = limit ? limit->value : *fallback;
  }
}

}  // namespace dlsim::sim
