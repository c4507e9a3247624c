// SPDX-License-Identifier: Apache-2.0
#include "sim/updates/optimizer_settings.h"

#include <map>
#include <string_view>

#include "dlsim/error.h"

namespace dlsim::sim {
namespace {

// Other classes that compute the same.
constexpr EnumName<OptimizerKind> kOtherNames[] = {
    {OptimizerKind::kAdamW, "fusedadam"},
    {OptimizerKind::kAdamW, "deepspeedcpuadam"},
    {OptimizerKind::kAdamW, "fusedadamw"},
    {OptimizerKind::kSgd, "fusedsgd"},
};

std::optional<OptimizerKind> KindNamed(std::string_view name) {
  for (const EnumName<OptimizerKind>& row : kOtherNames) {
    if (row.name == name) return row.value;
  }
  return ValueNamed<OptimizerKind>(name);
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
  const std::optional<OptimizerKind> kind =
      overrides.optimizer ? overrides.optimizer : KindNamed(group.optimizer);
  if (!kind) {
    throw InputError(place, "updates of this optimizer cannot be replayed",
                     "adamw, adam, sgd, lion or adafactor, or --optimizer",
                     Quoted(group.optimizer));
  }
  s.kind = *kind;
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
  if (s.kind == OptimizerKind::kAdam) recorded.Read("decoupled_weight_decay", s.decoupled);
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
