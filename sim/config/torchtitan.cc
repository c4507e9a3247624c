// SPDX-License-Identifier: Apache-2.0
// torchtitan's TOML, which it reads before 0.3; newer releases have Python in its place.
// Source: pytorch/torchtitan, torchtitan/config/job_config.py and components/optimizer.py.
#include <array>

#include "sim/config/arguments.h"
#include "sim/config/dialects.h"
#include "sim/config/half_precision.h"
#include "sim/config/scaled_recipes.h"

namespace dlsim::sim {
namespace {

constexpr std::array<std::string_view, 2> kTorchtitanMarks = {"training.mixed_precision_param",
                                                              "job.dump_folder training"};
constexpr std::array<std::string_view, 2> kTorchtitanTypes = {"bfloat16", "float32"};

// training.dtype bfloat16 puts weights, gradients and states in it, without a copy in float32; FSDP
// sums in float32.
UpdateFormats TorchtitanFormats(bool pure, const std::string& computes) {
  if (pure) return PureFormats("bf16", kFloat32Name);
  UpdateFormats formats = MasterFormats(computes);
  formats.gradients = formats.reduce = kFloat32Name;
  return formats;
}

UpdateSettings TorchtitanAdam(const ConfigBlock& file) {
  const ClearKeys keys(TableOrEmpty(file, "optimizer"));
  const std::string name = keys.Has("name") ? keys.Text("name").value_or("") : "AdamW";
  if (name != "Adam" && name != "AdamW") return {};
  return {.lr = keys.NumberOr("lr", 8e-4),
          .beta1 = keys.NumberOr("beta1", 0.9),
          .beta2 = keys.NumberOr("beta2", 0.95),
          .eps = keys.NumberOr("eps", 1e-8),
          .weight_decay = keys.NumberOr("weight_decay", 0.1),
          .decoupled = name == "AdamW"};
}

}  // namespace

bool LooksLikeTorchtitan(const ConfigBlock& file) { return HasMark(file.node(), kTorchtitanMarks); }

TrainingConfig ReadTorchtitan(const ConfigBlock& file, const ConfigOptions&) {
  TrainingConfig config = {.kind = "torchtitan", .formats = {}, .policies = {}};
  const std::optional<ConfigBlock> training = file.Table("training");
  if (!training) file.Refuse("training", "missing", "keys with values");
  const bool pure = training->Choice("dtype", kTorchtitanTypes) == "bfloat16";
  const std::string type =
      training->Choice("mixed_precision_param", kTorchtitanTypes).value_or("bfloat16");
  const bool half = pure || type == "bfloat16";
  ApplyPrecision(half ? Precision::kBf16 : Precision::kFloat32, {"torch", {}}, config);
  if (half)
    config.updates = {.formats = TorchtitanFormats(pure, "bf16"), .settings = TorchtitanAdam(file)};
  ReadNormLimit(*training, "max_norm", 1.0, config);
  ReadTorchaoRecipes(file, config);
  return config;
}

}  // namespace dlsim::sim
