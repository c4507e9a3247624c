// SPDX-License-Identifier: Apache-2.0
// One way to keep what an optimizer works with: formats, rounding, and what saves small updates.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/format.h"
#include "sim/updates/optimizer_settings.h"
#include "sim/updates/stored_format.h"

namespace dlsim::sim {

// How weights are written.
enum class WeightRounding : uint8_t { kNearestEven, kStochastic };

constexpr auto EnumNames(WeightRounding) {
  return std::to_array<EnumName<WeightRounding>>(
      {{WeightRounding::kNearestEven, "rne"}, {WeightRounding::kStochastic, "sr"}});
}

enum class Compensation : uint8_t {
  kNone,
  kKahan,  // what rounding took from a weight is kept in its format, and added the next time
};

constexpr auto EnumNames(Compensation) {
  return std::to_array<EnumName<Compensation>>(
      {{Compensation::kNone, "none"}, {Compensation::kKahan, "kahan"}});
}

enum class UpdateKernel : uint8_t {
  kForeach,  // the result of each operation on tensors is rounded to their format
  kFused,    // computed in float32, rounded where it is stored
};

constexpr auto EnumNames(UpdateKernel) {
  return std::to_array<EnumName<UpdateKernel>>(
      {{UpdateKernel::kForeach, "foreach"}, {UpdateKernel::kFused, "fused"}});
}

struct UpdateRun {
  std::string name;
  StoredFormat weights, first, second, gradients;
  WeightRounding rounding = WeightRounding::kNearestEven;
  Compensation compensation = Compensation::kNone;
  bool master = false;  // weights are copies of float32 ones, which the optimizer updates
  UpdateKernel kernel = UpdateKernel::kForeach;
  SettingOverrides overrides;

  // Returns the format of the weights that the optimizer updates.
  StoredFormat updated_weights() const { return master ? StoredFormat() : weights; }
};

// What the user asks for; a name is that of a format, or fp32.
struct UpdateRunRequest {
  std::optional<std::string> weights, states, first, second, gradients;
  std::optional<std::string> master;  // fp32 or none
  WeightRounding rounding = WeightRounding::kNearestEven;
  Compensation compensation = Compensation::kNone;
  std::optional<UpdateKernel> kernel;
  SettingOverrides overrides;

  // False if the user asks for no formats.
  bool asks_for_formats() const {
    return weights || states || first || second || gradients || master || kernel ||
           rounding != WeightRounding::kNearestEven || compensation != Compensation::kNone;
  }
};

// Returns the run that is asked for and those that may fix it; or if there are no formats, those
// that people train with, first by the kernel of the training. `trained`: with what the probe
// begins. Throws UsageError.
std::vector<UpdateRun> MakeUpdateRuns(const UpdateRunRequest& request,
                                      const OptimizerSettings& trained);

// Returns the float32 run of the same settings.
UpdateRun ReferenceOf(const SettingOverrides& overrides);

// The name of a format, or "fp32".
std::string StoredName(const StoredFormat& format);

}  // namespace dlsim::sim
