// SPDX-License-Identifier: Apache-2.0
#include "sim/config/lint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "dlsim/codec.h"
#include "dlsim/error.h"
#include "dlsim/format.h"
#include "sim/base/number.h"
#include "sim/base/quantity.h"
#include "sim/config/fsdp_types.h"

namespace dlsim::sim {
namespace {

// A step that moves no weight above this is worth a line; smaller weights are many in any model.
constexpr double kLargestStill = 0.125;

constexpr double kLargestFloat = std::numeric_limits<float>::max();

// Rounds to a format as its codec does, to nearest.
class Rounder {
 public:
  explicit Rounder(std::string_view format)
      : format_(ParseFormat(format).format), spec_(MakeCodecSpec({.format = format_})) {}

  float operator()(float value) const {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    return std::bit_cast<float>(Decode(spec_, Encode(spec_, Rounding::kNearestEven, bits).code));
  }

  int mantissa_bits() const { return format_.mantissa_bits; }
  int significands() const { return 1 << format_.mantissa_bits; }

  // How many significands come back from a product with `factor`, computed in float32 as torch
  // does.
  int Unmoved(double factor) const {
    int unmoved = 0;
    for (int i = 0; i < significands(); ++i) {
      const float value = 1.0f + static_cast<float>(i) / static_cast<float>(significands());
      unmoved += (*this)(value * static_cast<float>(factor)) == value;
    }
    return unmoved;
  }

 private:
  Format format_;
  CodecSpec spec_;
};

// A format that the file says, or that holds if its condition does.
struct Held {
  std::string format;
  std::string condition;  // as a line begins
};

bool IsHalf(const std::optional<std::string>& format) {
  return format && *format != kFloat32Name && *format != kNoMaster;
}

// What the optimizer updates, where that is in 16 bits or may be.
std::optional<Held> HeldWeights(const TrainingConfig& config) {
  const UpdateFormats& formats = config.updates.formats;
  if (IsHalf(formats.master))
    return Held{*formats.master, "the master weights are " + *formats.master};
  if (formats.master == kNoMaster) {
    if (!IsHalf(formats.weights)) return std::nullopt;
    return Held{*formats.weights, "weights are " + *formats.weights + " without a float32 copy"};
  }
  if (formats.master) return std::nullopt;
  // A gradient scaler refuses weights in fp16.
  const bool is_open = config.formats.size() == 1 && config.formats.front() != "fp16";
  const std::string type =
      formats.weights.value_or(is_open ? config.formats.front() : std::string(kFloat32Name));
  if (type == kFloat32Name) return std::nullopt;
  return Held{type, "if weights are " + type + " without a float32 copy"};
}

std::optional<Held> HeldMoment(const TrainingConfig& config,
                               const std::optional<std::string>& format, std::string_view which) {
  const std::string name = "the " + std::string(which) + " moment is ";
  if (IsHalf(format)) return Held{*format, name + *format};
  const std::optional<Held> weights = HeldWeights(config);
  if (format || !weights) return std::nullopt;
  return Held{weights->format, "if " + name + weights->format};
}

// The largest beta of three digits at which every significand decays; nothing if it is below 0.9.
std::optional<double> DecayingBeta(const Rounder& round) {
  for (int thousandth = 999; thousandth >= 900; --thousandth) {
    const double beta = thousandth / 1000.0;
    if (round.Unmoved(beta) == 0) return beta;
  }
  return std::nullopt;
}

void LintBeta(const std::optional<Held>& held, const std::optional<double>& beta,
              std::string_view name, std::vector<std::string>& notes) {
  if (!held || !beta || !(*beta > 0) || !(*beta < 1)) return;
  const Rounder round(held->format);
  const int stuck = round.Unmoved(*beta);
  if (stuck == 0) return;
  const std::string text = NumberText(*beta);
  const std::string who =
      stuck == round.significands()
          ? "it never decays"
          : fmt::format("{} of {} significands never decay", stuck, round.significands());
  const std::optional<double> better = DecayingBeta(round);
  notes.push_back(fmt::format("{}: at {} {} {}, since x * {} rounds back to x{}", held->condition,
                              name, text, who, text,
                              better ? "; at " + NumberText(*better) + " all decay" : ""));
}

// torch.optim rounds the sum of root and epsilon to the format of its states, unless fused.
void LintEpsilon(const TrainingConfig& config, std::vector<std::string>& notes) {
  const std::optional<Held> held = HeldWeights(config);
  const std::optional<double>& eps = config.updates.settings.eps;
  if (!held || held->format != "fp16" || !eps || !(*eps > 0) || *eps > 1) return;
  if (Rounder(held->format)(static_cast<float>(*eps)) != 0) return;
  notes.push_back(fmt::format(
      "{}: eps {} rounds to 0 in {}, so that torch.optim without fused=True divides by 0 where the "
      "second moment is 0",
      held->condition, NumberText(*eps), held->format));
}

// The least power of two above which a step of this size is at most half the distance to the next
// weight.
double LargestMoved(const Rounder& round, double step) {
  const int exponent = std::ilogb(step) + round.mantissa_bits() + 2;
  return std::ldexp(1.0, exponent);
}

void LintWeights(const TrainingConfig& config, std::vector<std::string>& notes) {
  const std::optional<Held> held = HeldWeights(config);
  const UpdateSettings& settings = config.updates.settings;
  if (!held || !settings.lr || !(*settings.lr > 0) || !std::isfinite(*settings.lr)) return;
  const Rounder round(held->format);
  const double limit = LargestMoved(round, *settings.lr);
  if (limit <= kLargestStill) {
    notes.push_back(fmt::format("{}: a step of the learning rate, {}, moves no weight above {}",
                                held->condition, NumberText(*settings.lr), ScaleText(limit)));
  }
  const double decay = *settings.lr * settings.weight_decay.value_or(0);
  if (!settings.decoupled || !(decay > 0) || decay > 1) return;
  if (round.Unmoved(1 - decay) != round.significands()) return;
  notes.push_back(
      fmt::format("{}: weight decay alone moves no weight, since w * (1 - lr * weight_decay) = w * "
                  "(1 - {}) rounds back to w",
                  held->condition, fmt::format("{:.4g}", decay)));
}

// A number anywhere in the file, under one of several names.
struct Constant {
  std::string path;
  double value = 0;
};

// Nothing for a number that no float64 holds, which whoever needs it refuses.
std::optional<double> NumberOf(const ConfigNode& node) {
  if (node.kind != ConfigNode::Kind::kNumber) return std::nullopt;
  try {
    return ParseNumber(node.text, "");
  } catch (const Error&) {
    return std::nullopt;
  }
}

void FindConstants(const ConfigNode& node, const std::string& path,
                   std::span<const std::string_view> names, std::vector<Constant>& found) {
  for (const ConfigEntry& entry : node.entries) {
    std::string key = entry.key;
    key.erase(0, std::min(key.find_first_not_of('-'), key.size()));
    std::ranges::replace(key, '-', '_');
    const std::string inner = path.empty() ? entry.key : path + "." + entry.key;
    const std::optional<double> number = NumberOf(entry.value);
    if (number && std::ranges::count(names, key) > 0) found.push_back({inner, *number});
    FindConstants(entry.value, inner, names, found);
  }
}

std::vector<Constant> FindConstants(const ConfigNode& root,
                                    std::span<const std::string_view> names) {
  std::vector<Constant> found;
  FindConstants(root, "", names, found);
  return found;
}

void LintMasks(const ConfigNode& root, const std::string& format, std::vector<std::string>& notes) {
  constexpr std::array<std::string_view, 8> kNames = {
      "mask_value", "attention_mask_value", "attn_mask_value", "mask_fill_value",
      "mask_fill",  "masked_value",         "masked_bias",     "mask_bias"};
  const Rounder round(format);
  for (const Constant& mask : FindConstants(root, kNames)) {
    const double in_float32 = std::max(mask.value, -kLargestFloat);
    if (!(mask.value < 0) || !std::isinf(round(static_cast<float>(in_float32)))) continue;
    notes.push_back(fmt::format(
        "if {} is held in {}: {} is -inf there, and a row that is masked whole becomes NaN",
        Printable(mask.path), format, fmt::format("{:g}", mask.value)));
  }
}

void LintSmoothing(const ConfigNode& root, const std::string& format,
                   std::vector<std::string>& notes) {
  constexpr std::array<std::string_view, 2> kNames = {"label_smoothing", "label_smoothing_factor"};
  const Rounder round(format);
  for (const Constant& smoothing : FindConstants(root, kNames)) {
    if (!(smoothing.value > 0) || smoothing.value >= 1) continue;
    if (round(static_cast<float>(1 - smoothing.value)) != 1) continue;
    notes.push_back(
        fmt::format("if targets are held in {}: {} {} does nothing to the right class, "
                    "since 1 - {} rounds to 1",
                    format, Printable(smoothing.path), NumberText(smoothing.value),
                    NumberText(smoothing.value)));
  }
}

// True for settings of a policy that are loss scales; growth factors and windows are not.
bool IsScale(std::string_view key) {
  constexpr std::array<std::string_view, 8> kNames = {
      "loss_scale",     "init_scale",     "initial_scale", "initial_loss_scale",
      "min_loss_scale", "max_loss_scale", "min_scale",     "max_scale"};
  return std::ranges::count(kNames, key) > 0;
}

// Below which no scale falls.
bool IsLeast(std::string_view key) { return key == "loss_scale" || key.starts_with("min_"); }

std::optional<double> ScaleIn(std::string_view text) {
  try {
    return ParseNumber(text, "");
  } catch (const Error&) {
    return std::nullopt;  // "dynamic"
  }
}

// Scalers hold the scale in float32; a model in 16 bits may make its loss, and the product, there.
void LintScales(const TrainingConfig& config, std::vector<std::string>& notes) {
  const bool is_fp16 = std::ranges::count(config.formats, "fp16") > 0;
  for (const ConfigPolicy& policy : config.policies) {
    for (const std::string_view setting : policy.settings) {
      const std::string_view key = setting.substr(0, setting.find('='));
      const std::optional<double> scale =
          IsScale(key) ? ScaleIn(setting.substr(key.size() + 1)) : std::nullopt;
      if (!scale || !(*scale > 0)) continue;
      const std::string held = fmt::format("{} {}", key, PowerText(*scale));
      if (*scale > kLargestFloat) {
        notes.push_back("if the scale is held in fp32: " + held + " is infinite there");
      } else if (static_cast<float>(*scale) == 0) {
        notes.push_back("if the scale is held in fp32: " + held + " rounds to 0 there");
      } else if (is_fp16 && IsLeast(key) &&
                 std::isinf(Rounder("fp16")(static_cast<float>(*scale)))) {
        notes.push_back("if the loss is multiplied in fp16: " + held +
                        " is infinite there, at every step");
      }
    }
  }
}

}  // namespace

std::vector<std::string> LintConfig(const TrainingConfig& config, const ConfigNode& root) {
  std::vector<std::string> notes;
  const UpdateFormats& formats = config.updates.formats;
  const UpdateSettings& settings = config.updates.settings;
  LintBeta(HeldMoment(config, formats.first, "first"), settings.beta1, "beta1", notes);
  LintBeta(HeldMoment(config, formats.second, "second"), settings.beta2, "beta2", notes);
  LintEpsilon(config, notes);
  LintWeights(config, notes);
  LintScales(config, notes);
  for (const std::string& format : config.formats) {
    LintMasks(root, format, notes);
    LintSmoothing(root, format, notes);
  }
  for (std::string& note : LintFsdp(root)) notes.push_back(std::move(note));
  return notes;
}

}  // namespace dlsim::sim
