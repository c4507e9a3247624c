// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/change.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "dlsim/error.h"
#include "sim/advice/advice.h"
#include "sim/advice/advice_text.h"
#include "sim/replay/layer_name.h"

namespace dlsim::sim {
namespace {

constexpr std::string_view kRoot = "(root)";

bool Matches(const std::string& pattern, const std::string& name) {
  // A glob of modules is none of the operations in them.
  if ((pattern.find('/') == pattern.npos) != (name.find('/') == name.npos)) return false;
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

// What a plan of the recorder's means for the gradients of the rest.
Change ChangeBy(const Shadow::Plan& plan, const FormatAdvice& format, const StepSource& source,
                AdviceRequest request, ReplayOptions options) {
  Change change;
  change.keep_float32 = plan.keep_float32;
  change.sources = plan.sources;
  change.loss_in_float32 = plan.loss_in_float32;
  change.share = plan.share;
  change.steps = plan.steps;
  for (const Shadow::Culprit& culprit : format.shadow->culprits) {
    change.because.push_back(culprit.part + ".act");
  }
  for (const std::string& module : format.shadow->modules) {
    change.because.push_back(module + ".act_grad");
  }
  FormatAdvice rest = format;
  if (!plan.keep_float32.empty() && !(format.tensors.empty() && format.noise_tensors.empty())) {
    request.formats = {format.format};
    options.observer = nullptr;
    const KeptUnits kept(plan.keep_float32);
    const StepSource without =
        Without(source, [&kept](const TensorInfo& tensor) { return kept.Has(tensor.name); });
    rest = WindowsOf(without, request, options).formats.front();
  }
  // The steps hold at the plan's scale, whatever is said of those at which float32 was recorded.
  change.scale = plan.scale;
  change.then = plan.scale == 1 ? Verdict::kAsIs : Verdict::kWithScale;
  if (rest.window) {
    change.window = rest.window;
    change.scale = std::ldexp(1.0, rest.window->exponent);
    change.then = rest.window->exponent == 0 ? Verdict::kAsIs : Verdict::kWithScale;
  }
  return change;
}

// What else than keeping parts in float32 may help.
std::string InsteadFor(const Advice& advice) {
  const bool bf16 = std::ranges::any_of(advice.formats, [](const FormatAdvice& other) {
    return other.format == "bf16" && Trains(other);
  });
  return bf16 ? "use bf16" : "";
}

}  // namespace

KeptUnits::KeptUnits(std::span<const std::string> names) : names_(names.begin(), names.end()) {
  for (const std::string& name : names) {
    if (name.find_first_of("*?[") != name.npos) globs_.push_back(name);
  }
}

bool KeptUnits::Has(std::string_view tensor) const {
  if (names_.contains(kRoot)) return true;
  const auto matches = [&](const std::string& name) {
    return names_.contains(name) || std::ranges::any_of(globs_, [&](const std::string& glob) {
             return Matches(glob, name);
           });
  };
  const std::string module = WithoutCall(LayerOf(tensor));
  const std::string stem = StemOf(OutputOf(tensor));
  if (IsOfOperation(stem) && matches(WithoutCall(stem))) return true;
  for (size_t end = module.size(); end != 0 && end != module.npos;
       end = module.rfind('.', end - 1)) {
    if (matches(module.substr(0, end))) return true;
  }
  return false;
}

StepSource KeptInFloat32(StepSource source, std::span<const std::string> names) {
  for (const std::string& name : names) {
    const KeptUnits kept({&name, 1});
    std::string any;
    bool found = false;
    const auto look = [&](std::span<const TensorInfo> tensors) {
      for (const TensorInfo& tensor : tensors) {
        if (any.empty()) any = WithoutCall(LayerOf(tensor.name));
        found |= kept.Has(tensor.name);
      }
    };
    for (size_t i = 0; i < source.step_count && !found; ++i) {
      const auto step = source.describe(i);
      look(step->gradients());
      look(step->forward());
    }
    if (found) continue;
    throw UsageError("--float32", "no module of the recording matches", "such as " + Quoted(any),
                     Quoted(name));
  }
  const KeptUnits kept(names);
  StepSource without = Without(std::move(source),
                               [kept](const TensorInfo& tensor) { return kept.Has(tensor.name); });
  without.float32.assign(names.begin(), names.end());
  return without;
}

Shadow WithKept(Shadow shadow, std::span<const std::string> names) {
  if (!shadow.plan) return shadow;
  Shadow::Plan& plan = *shadow.plan;
  const KeptUnits kept(names);
  Shadow::Plan rest = plan;
  rest.keep_float32.clear();
  rest.sources.clear();
  for (size_t i = 0; i < plan.keep_float32.size(); ++i) {
    if (kept.Has(plan.keep_float32[i] + ".act")) continue;
    rest.keep_float32.push_back(plan.keep_float32[i]);
    rest.sources.push_back(plan.sources[i]);
  }
  if (rest.keep_float32.empty() && !rest.loss_in_float32) {
    Shadow holds;
    holds.steps = plan.steps;
    holds.scale = plan.scale;
    holds.ceilings = plan.ceilings;
    return holds;
  }
  plan = rest;
  return shadow;
}

void AddChanges(const StepSource& source, const AdviceRequest& request,
                const ReplayOptions& options, Advice& advice) {
  bool changed = !advice.float32.empty();
  for (FormatAdvice& format : advice.formats) {
    if (!Fails(format)) continue;
    changed = true;
    if (advice.recipe == Recipe::kAutocast) format.instead = InsteadFor(advice);
    if (format.shadow && format.shadow->plan) {
      format.change = ChangeBy(*format.shadow->plan, format, source, request, options);
    }
  }
  if (changed) advice.lines = AdviceLines(advice);
}

}  // namespace dlsim::sim
