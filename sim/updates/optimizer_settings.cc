// SPDX-License-Identifier: Apache-2.0
#include "sim/updates/optimizer_settings.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "dlsim/error.h"

namespace dlsim::sim {
namespace {

// Other classes that compute the same, in one kernel.
constexpr EnumName<OptimizerKind> kFusedNames[] = {
    {OptimizerKind::kAdamW, "fusedadam"},
    {OptimizerKind::kAdamW, "deepspeedcpuadam"},
    {OptimizerKind::kAdamW, "fusedadamw"},
    {OptimizerKind::kSgd, "fusedsgd"},
};

// Settings of classes that have a name of PyTorch's and rules of their own: Adafactor of
// transformers and fairseq, AdamW of Cerebras and of transformers before 5.
constexpr std::array<std::string_view, 6> kOtherRules = {
    "correct_bias", "l2_regularization_rate", "clip_threshold",
    "decay_rate",   "scale_parameter",        "relative_step"};

struct NamedKind {
  OptimizerKind kind = OptimizerKind::kAdamW;
  bool is_fused = false;
};

std::optional<NamedKind> KindNamed(std::string_view name) {
  for (const EnumName<OptimizerKind>& row : kFusedNames) {
    if (row.name == name) return NamedKind{row.value, true};
  }
  if (const auto kind = ValueNamed<OptimizerKind>(name)) return NamedKind{*kind, false};
  return std::nullopt;
}

// What the caller asks for, else what was recorded.
NamedKind KindOf(const ProbeGroup& group, const SettingOverrides& overrides,
                 const std::string& place) {
  if (overrides.optimizer) return {*overrides.optimizer, false};
  const auto refuse = [&](std::string_view problem, std::string_view expected) {
    throw InputError(place, problem, expected, Quoted(group.optimizer));
  };
  const std::optional<NamedKind> named = KindNamed(group.optimizer);
  if (!named) {
    refuse("updates of this optimizer cannot be replayed",
           "adamw, adam, sgd, lion or adafactor, or --optimizer");
  }
  const auto is_set = [&](std::string_view key) { return group.values.contains(std::string(key)); };
  const auto* const other = std::ranges::find_if(kOtherRules, is_set);
  if (other != kOtherRules.end()) {
    refuse("updates of a class with " + std::string(*other) + " cannot be replayed",
           "the class of PyTorch, or --optimizer");
  }
  return *named;
}

// The recorded value of a name, if there is one.
class Recorded {
 public:
  explicit Recorded(const std::map<std::string, double>& values) : values_(values) {}

  void Read(const char* name, double& value) const {
    const auto found = values_.find(name);
    if (found != values_.end()) value = found->second;
  }
  void Read(const char* name, bool& value) const {
    const auto found = values_.find(name);
    if (found != values_.end()) value = found->second != 0;
  }
  void Read(const char* name, std::optional<double>& value) const {
    const auto found = values_.find(name);
    if (found != values_.end()) value = found->second;
  }

 private:
  const std::map<std::string, double>& values_;
};

void Override(const std::optional<double>& by, double& value) {
  if (by) value = *by;
}

}  // namespace

OptimizerSettings SettingsOf(const ProbeGroup& group, const SettingOverrides& overrides,
                             const std::string& place) {
  OptimizerSettings s;
  const NamedKind named = KindOf(group, overrides, place);
  s.kind = named.kind;
  s.is_fused = named.is_fused;
  s.decoupled = s.kind != OptimizerKind::kAdam && s.kind != OptimizerKind::kSgd;
  if (s.kind == OptimizerKind::kLion) s.beta2 = 0.99;
  const Recorded recorded(group.values);
  recorded.Read("lr", s.lr);
  recorded.Read("beta1", s.beta1);
  recorded.Read("beta2", s.beta2);
  recorded.Read("eps", s.eps);
  recorded.Read("weight_decay", s.weight_decay);
  recorded.Read("momentum", s.momentum);
  recorded.Read("dampening", s.dampening);
  recorded.Read("nesterov", s.nesterov);
  recorded.Read("maximize", s.maximize);
  recorded.Read("amsgrad", s.amsgrad);
  // Of the recorded optimizer, not of another that is replayed instead.
  if (!overrides.optimizer && s.has_beta2()) recorded.Read("decoupled_weight_decay", s.decoupled);
  recorded.Read("bias_correction", s.corrects_bias);
  recorded.Read("fused", s.is_fused);
  recorded.Read("foreach", s.is_foreach);
  recorded.Read("tensor_betas", s.tensor_betas);
  recorded.Read("capturable", s.capturable);
  recorded.Read("beta2_decay", s.beta2_decay);
  recorded.Read("eps1", s.eps1);
  recorded.Read("eps2", s.eps2);
  recorded.Read("d", s.largest_rms);
  bool cuda = false;
  recorded.Read("cuda", cuda);
  s.device = overrides.arithmetic.value_or(cuda ? UpdateDevice::kCuda : UpdateDevice::kCpu);
  Override(overrides.lr, s.lr);
  Override(overrides.beta1, s.beta1);
  Override(overrides.beta2, s.beta2);
  Override(overrides.eps, s.eps);
  Override(overrides.weight_decay, s.weight_decay);
  Override(overrides.momentum, s.momentum);
  if (!overrides.lr && !group.values.contains("lr")) {
    throw InputError(place, "no learning rate was recorded", "one, or --lr");
  }
  return s;
}

}  // namespace dlsim::sim
