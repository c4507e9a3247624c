// SPDX-License-Identifier: Apache-2.0
#include "sim/config/deepspeed_scaler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "src/base/nearest_name.h"

namespace dlsim::sim {
namespace {

constexpr std::array<std::string_view, 5> kDynamicKeys = {
    "initial_scale_power", "loss_scale_window", "hysteresis", "consecutive_hysteresis",
    "min_loss_scale"};

constexpr int64_t kNoMaximum = std::numeric_limits<int64_t>::max();

// The loss scaler of ZeRO.
ConfigPolicy ZeroScaler(const DeepSpeedValues& fp16, ConfigPolicy policy) {
  policy.name = fp16.release.IsBefore(kPrecisionConfig) ? "deepspeed-0.16" : "deepspeed";
  // Below 1 the scale never falls, by how much below makes no difference.
  const int64_t hysteresis = std::max<int64_t>(fp16.Integer("hysteresis", "2").value_or(2), 0);
  policy.settings.push_back("delayed_shift=" + std::to_string(hysteresis));
  const bool consecutive = fp16.Bool("consecutive_hysteresis", false).value_or(false);
  policy.settings.push_back(std::string("consecutive_hysteresis=") +
                            (consecutive ? "true" : "false"));
  return policy;
}

// FP16_Optimizer, which serves without ZeRO.
ConfigPolicy PlainScaler(const DeepSpeedValues& fp16, ConfigPolicy policy) {
  policy.name = "deepspeed-fp16-optimizer";
  fp16.Integer("hysteresis", "2");
  fp16.Bool("consecutive_hysteresis", false);
  if (fp16.block.Has("hysteresis") || fp16.block.Has("consecutive_hysteresis")) {
    fp16.notes.push_back("hysteresis has no effect without ZeRO: FP16_Optimizer does not have it");
  }
  return policy;
}

bool UsesLamb(const ConfigBlock& file) {
  const ConfigNode* type = file.node().FindPath("optimizer.type");
  return type != nullptr &&
         (EqualsIgnoringCase(type->text, "lamb") || EqualsIgnoringCase(type->text, "onebitlamb"));
}

// Before 0.17.1 a file without any of kDynamicKeys got the defaults of the scalers' own classes.
void ApplyEarlyDefaults(const DeepSpeedValues& fp16, int64_t stage, bool lamb,
                        ConfigPolicy& policy) {
  const auto has = [&](std::string_view key) { return fp16.block.node().Find(key) != nullptr; };
  if (std::ranges::any_of(kDynamicKeys, has) || (stage == 0 && !lamb)) return;
  if (!fp16.release.named()) {
    fp16.notes.push_back(
        std::string("DeepSpeed before 0.17.1 takes other defaults where fp16 has no key of dynamic "
                    "scaling (--config-version): ") +
        (stage > 0 ? "an initial scale of 2^32 and hysteresis 1" : "a min_loss_scale of 0.25"));
  } else if (fp16.release.IsBefore(kPrecisionConfig)) {
    policy.settings = stage > 0 ? std::vector<std::string>{"init_scale=2^32", "delayed_shift=1"}
                                : std::vector<std::string>{"init_scale=2^16", "min_scale=0.25"};
  }
}

// True and false are integers to pydantic, but not here.
void RequireNoBool(const DeepSpeedValues& fp16, std::string_view key) {
  const ConfigNode* value = fp16.block.Find(key);
  if (value == nullptr || value->kind != ConfigNode::Kind::kBool) return;
  fp16.block.Refuse(key, "must be an integer, not bool", "an integer", value->text);
}

// Returns min_loss_scale; `used`: the scale can fall to it.
std::string ReadFloor(const DeepSpeedValues& fp16, bool used) {
  constexpr std::string_view kKey = "min_loss_scale";
  RequireNoBool(fp16, kKey);
  const std::optional<ConfigNumber> floor = fp16.Number(kKey, "1");
  if (!floor) return "1";
  if (floor->value != std::trunc(floor->value)) {
    fp16.RefusedSince(kPrecisionConfig, kKey, "a min_loss_scale that is not an integer");
  }
  if (!used) return floor->text;
  if (floor->value == 0) fp16.RefusedSince(kClipsByDefault, kKey, "a min_loss_scale of 0");
  return fp16.block.Number(kKey, NumberRange::kNotNegative)->text;
}

// Reads one of the integers of dynamic scaling, which has limits only where it is used.
int64_t ReadLimited(const DeepSpeedValues& fp16, std::string_view key, int64_t fallback, bool used,
                    int64_t min, int64_t max) {
  const int64_t value = fp16.Integer(key, std::to_string(fallback)).value_or(fallback);
  if (!used || (value >= min && value <= max)) return value;
  return *fp16.block.Integer(key, min, max);
}

// Returns loss_scale, which is 0 where the scale is dynamic.
std::optional<ConfigNumber> ReadStaticScale(const DeepSpeedValues& fp16) {
  const std::optional<ConfigNumber> scale = fp16.Number("loss_scale", "0 (dynamic)");
  if (scale) fp16.block.Number("loss_scale", NumberRange::kNotNegative);
  return scale;
}

}  // namespace

ConfigPolicy DeepSpeedScaler(const DeepSpeedValues& file, const DeepSpeedValues& fp16,
                             int64_t stage, bool enabled) {
  const std::optional<ConfigNumber> scale = ReadStaticScale(fp16);
  RequireNoBool(fp16, "loss_scale_window");
  const bool dynamic = enabled && (!scale || scale->value == 0);
  const int64_t power = ReadLimited(fp16, "initial_scale_power", 16, dynamic, -1074, 1023);
  const int64_t window = ReadLimited(fp16, "loss_scale_window", 1000, dynamic, 1, kNoMaximum);
  ConfigPolicy policy = {
      "",
      {"init_scale=2^" + std::to_string(power), "scale_window=" + std::to_string(window),
       "min_scale=" + ReadFloor(fp16, dynamic)}};
  policy = stage == 0 ? PlainScaler(fp16, std::move(policy)) : ZeroScaler(fp16, std::move(policy));
  if (!dynamic) return {policy.name, {"loss_scale=" + (scale ? scale->text : "1")}};
  ApplyEarlyDefaults(fp16, stage, UsesLamb(file.block), policy);
  return policy;
}

}  // namespace dlsim::sim
