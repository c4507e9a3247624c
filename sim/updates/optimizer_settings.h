// SPDX-License-Identifier: Apache-2.0
// Settings of an optimizer for one update: the recorded values, or those that the user gives.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "dlsim/enum_names.h"
#include "dlsim/probe.h"

namespace dlsim::sim {

enum class OptimizerKind : uint8_t { kAdamW, kAdam, kSgd, kLion, kAdafactor };

constexpr auto EnumNames(OptimizerKind) {
  return std::to_array<EnumName<OptimizerKind>>({{OptimizerKind::kAdamW, "adamw"},
                                                 {OptimizerKind::kAdam, "adam"},
                                                 {OptimizerKind::kSgd, "sgd"},
                                                 {OptimizerKind::kLion, "lion"},
                                                 {OptimizerKind::kAdafactor, "adafactor"}});
}

// Whose kernels of PyTorch compute an update: they round in other places (docs/updates.md).
enum class UpdateDevice : uint8_t { kCpu, kCuda };

constexpr auto EnumNames(UpdateDevice) {
  return std::to_array<EnumName<UpdateDevice>>(
      {{UpdateDevice::kCpu, "cpu"}, {UpdateDevice::kCuda, "cuda"}});
}

// Values that take the place of recorded ones.
struct SettingOverrides {
  std::optional<OptimizerKind> optimizer;
  std::optional<double> lr, beta1, beta2, eps, weight_decay, momentum;
  std::optional<UpdateDevice> arithmetic;

  friend bool operator==(const SettingOverrides&, const SettingOverrides&) = default;
};

// What is not recorded has PyTorch's default; Lion that of its paper.
struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double momentum = 0, dampening = 0;
  bool nesterov = false, maximize = false, amsgrad = false;
  bool decoupled = false;     // weight decay multiplies weights, and is not added to gradients
  bool corrects_bias = true;  // of Adam's moments, which begin at 0
  bool is_fused = false;      // one kernel computes the update in float32
  bool is_foreach = false;    // foreach=True, which on a CPU rounds factors to the format
  bool tensor_betas = false;  // betas are tensors
  bool capturable = false;
  UpdateDevice device = UpdateDevice::kCpu;

  // Of Adafactor: beta2 is 1 - update^beta2_decay; the floor of the second moment is eps1 squared,
  // where eps1 may be the format's epsilon; the least size of weights that scales steps; and the
  // largest root mean square of an update.
  double beta2_decay = -0.8;
  std::optional<double> eps1;
  double eps2 = 1e-3, largest_rms = 1;

  bool has_first_moment() const { return has_states() && kind != OptimizerKind::kAdafactor; }
  bool has_second_moment() const {
    return kind != OptimizerKind::kSgd && kind != OptimizerKind::kLion;
  }
  // Whether the second moment forgets by beta2.
  bool has_beta2() const { return kind == OptimizerKind::kAdam || kind == OptimizerKind::kAdamW; }
  bool has_states() const { return kind != OptimizerKind::kSgd || momentum != 0; }
};

// Returns the settings of a group. Throws InputError, naming `place`, for an optimizer whose
// updates cannot be replayed, one of the same name with other rules among them, and without a
// learning rate.
OptimizerSettings SettingsOf(const ProbeGroup& group, const SettingOverrides& overrides,
                             const std::string& place);

}  // namespace dlsim::sim
