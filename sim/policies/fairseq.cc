// SPDX-License-Identifier: Apache-2.0
// The policies of fairseq and of metaseq: their parameters, and what to note about them.
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "sim/policies/fairseq_scaler.h"
#include "sim/policies/policies.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

std::vector<ParameterInfo> Parameters(FairseqStack stack) {
  const bool fairseq = stack == FairseqStack::kFairseq;
  return {
      {"init_scale",
       {"initial_loss_scale", "fp16_init_scale"},
       fairseq ? "2^15" : "4",
       fairseq ? "loss scale of the first step; the command line's default is 128"
               : "loss scale of the first step",
       kStart},
      {"scale_factor",
       {},
       "2",
       "divides the scale on an overflow and multiplies it on growth",
       kFactor},
      {"scale_window",
       {"fp16_scale_window"},
       fairseq ? "2000" : "256",
       fairseq ? "clean steps in a row until the scale grows"
               : "clean steps in a row until the scale grows; changes with the scale",
       kInterval},
      {"tolerance",
       {"fp16_scale_tolerance"},
       "0",
       "the scale falls from this fraction of overflows since its last change on",
       kTolerance},
      {"threshold", {"threshold_loss_scale"}, "none", "floor, or none", kFloor},
      {"min_loss_scale",
       {},
       fairseq ? "1e-4" : "2^-5",
       fairseq ? "an overflow that arrives here raises FloatingPointError"
               : "an overflow that would fall below leaves the scale as it is",
       kFloor},
  };
}

const std::vector<ParameterInfo>& ParametersOf(FairseqStack stack) {
  static const std::vector<ParameterInfo> kFairseq = Parameters(FairseqStack::kFairseq);
  static const std::vector<ParameterInfo> kMetaseq = Parameters(FairseqStack::kMetaseq);
  return stack == FairseqStack::kFairseq ? kFairseq : kMetaseq;
}

// Elsewhere 0 means the default.
void NoteZeros(const FairseqLossScaler::Config& config, std::vector<std::string>& notes) {
  if (config.init_scale == 0 && config.threshold.value_or(0) <= 0) {
    notes.push_back("init_scale 0 is taken as it is, not as the default: the scale stays 0");
  }
  if (config.min_loss_scale == 0) {
    notes.push_back(config.stack == FairseqStack::kFairseq
                        ? "min_loss_scale 0 is taken as it is, not as the default: no error before "
                          "the scale has underflowed to 0"
                        : "min_loss_scale 0 is taken as it is, not as the default: the scale can "
                          "reach 0 and never returns");
  }
}

void NoteCommon(const FairseqLossScaler::Config& config, std::vector<std::string>& notes) {
  NoteZeros(config, notes);
  NoteDivisor("scale_factor", config.scale_factor, notes);
  if (config.scale_window == 0) {
    notes.push_back("scale_window 0: the first clean step raises ZeroDivisionError");
  } else if (config.scale_window < 0) {
    notes.push_back("scale_window below 0 acts as its absolute value");
  }
  if (config.tolerance > 1) {
    notes.push_back(
        "tolerance above 1: the scale falls only by overflows from before its last growth");
  } else if (config.tolerance == 1) {
    notes.push_back(
        "tolerance 1 compares with >=: the scale still falls when every step since its last "
        "change overflowed");
  }
  if (config.threshold && config.init_scale < *config.threshold) {
    notes.push_back("init_scale below threshold: an overflow raises the scale to threshold");
  }
}

void NoteFairseq(const FairseqLossScaler::Config& config, std::vector<std::string>& notes) {
  const double infinity = std::numeric_limits<double>::infinity();
  NoteInfinity(CleanStepsToReach<FairseqLossScaler>(config, infinity), notes);
  if (config.threshold && *config.threshold <= config.min_loss_scale) {
    notes.push_back(
        "threshold at or below min_loss_scale is useless: FloatingPointError comes first");
  }
  const auto overflows =
      StepsUntil<FairseqLossScaler>(config, {.overflow = true}, [](const auto& transition) {
        return transition.event && transition.event->type == "FloatingPointError";
      });
  if (overflows) {
    const std::string which = *overflows == 1
                                  ? "the first overflow raises"
                                  : std::to_string(*overflows) + " overflows in a row raise";
    notes.push_back(which +
                    " FloatingPointError; a threshold above min_loss_scale goes on instead");
  }
}

void NoteMetaseq(const FairseqLossScaler::Config& config, std::vector<std::string>& notes) {
  notes.push_back(
      "scale_window is not constant: growth multiplies it by scale_factor, an overflow divides "
      "it, down to 1");
  if (config.threshold && *config.threshold < config.min_loss_scale) {
    notes.push_back("threshold below min_loss_scale has no effect");
  }
  const bool lifted = config.threshold && *config.threshold >= config.min_loss_scale;
  if (config.init_scale < config.min_loss_scale && !lifted) {
    notes.push_back("init_scale below min_loss_scale: an overflow leaves the scale as it is");
  }
}

// Beyond this binary64 does not hold every integer.
constexpr int64_t kMaxWindow = int64_t{1} << 53;

ConfiguredScaler MakeFairseq(std::string_view policy, FairseqStack stack,
                             const ParameterMap& given) {
  const Settings settings{policy, ParametersOf(stack), given};
  const FairseqLossScaler::Config config = {.stack = stack,
                                            .init_scale = settings.Number("init_scale"),
                                            .scale_factor = settings.Number("scale_factor"),
                                            .scale_window = settings.Integer("scale_window"),
                                            .tolerance = settings.Number("tolerance"),
                                            .threshold = OptionalNumber(settings, "threshold"),
                                            .min_loss_scale = settings.Number("min_loss_scale")};
  if (config.scale_window < -kMaxWindow || config.scale_window > kMaxWindow) {
    throw UsageError(std::string(policy) + ".scale_window", "out of range",
                     "at most 2^53 either way", std::to_string(config.scale_window));
  }
  std::vector<std::string> notes;
  NoteCommon(config, notes);
  (stack == FairseqStack::kFairseq ? NoteFairseq : NoteMetaseq)(config, notes);
  return {.scaler = LossScaler::Make<FairseqLossScaler>(config),
          .parameters = {{"init_scale", config.init_scale},
                         {"scale_factor", config.scale_factor},
                         {"scale_window", config.scale_window},
                         {"tolerance", config.tolerance},
                         OptionalValue("threshold", config.threshold),
                         {"min_loss_scale", config.min_loss_scale}},
          .notes = std::move(notes)};
}

PolicyInfo Policy(std::string_view name, FairseqStack stack, std::string_view summary) {
  return {.name = name,
          .aliases = {},
          .summary = summary,
          .rules = {.finite_test = FiniteTest::kScaledNorm, .clip_rule = ClipRule::kFairseq},
          .parameters = ParametersOf(stack),
          .make = [=](const ParameterMap& given,
                      std::string_view) { return MakeFairseq(name, stack, given); },
          .checkpoint = CheckpointContent::kScaleOnly};
}

}  // namespace

PolicyInfo FairseqPolicy() {
  return Policy("fairseq", FairseqStack::kFairseq,
                "fairseq's DynamicLossScaler; stops with FloatingPointError at its minimum");
}

PolicyInfo MetaseqPolicy() {
  return Policy("metaseq", FairseqStack::kMetaseq,
                "metaseq's DynamicLossScaler; its window changes with the scale");
}

}  // namespace dlsim::sim
