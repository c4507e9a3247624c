// SPDX-License-Identifier: Apache-2.0
#include "sim/updates/update_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "dlsim/error.h"
#include "sim/base/format_or_fp32.h"

namespace dlsim::sim {
namespace {

// With this one Adam's second moment decays from every value of bf16, not with 0.999.
constexpr double kDecayingBeta2 = 0.99;

bool SameFormat(const StoredFormat& a, const StoredFormat& b) {
  return a.has_value() == b.has_value() && (!a || a->format == b->format);
}

StoredFormat ParseOr(const char* option, const std::optional<std::string>& name,
                     const StoredFormat& otherwise) {
  return name ? ParseFormatOrFp32(option, *name) : otherwise;
}

bool ParseMaster(const std::optional<std::string>& text) {
  if (!text || *text == "none") return false;
  if (*text == "fp32" || *text == "float32") return true;
  throw UsageError("--master", "unknown kind of weights", "fp32 or none", Quoted(*text));
}

// What is kept in several formats has kernels that compute in float32.
bool HasOneFormat(const UpdateRun& run) {
  return SameFormat(run.updated_weights(), run.first) && SameFormat(run.first, run.second) &&
         SameFormat(run.second, run.gradients);
}

std::string StatesText(const UpdateRun& run) {
  if (SameFormat(run.first, run.second)) return StoredName(run.first) + " states";
  return StoredName(run.first) + " first and " + StoredName(run.second) + " second moment";
}

std::string NameFor(const UpdateRun& run) {
  std::string name = run.master ? "fp32 master" : StoredName(run.weights);
  if (run.rounding == WeightRounding::kStochastic) name += " + sr";
  if (run.compensation == Compensation::kKahan) name += " + kahan";
  const StoredFormat weights = run.updated_weights();
  if (!SameFormat(run.first, weights) || !SameFormat(run.second, weights)) {
    name += ", " + StatesText(run);
  }
  if (!SameFormat(run.gradients, weights)) name += ", " + StoredName(run.gradients) + " gradients";
  if (HasOneFormat(run) && weights && run.kernel == UpdateKernel::kFused &&
      run.rounding == WeightRounding::kNearestEven && run.compensation == Compensation::kNone) {
    name += ", fused";
  }
  if (run.overrides.beta2) name += fmt::format(", beta2 {}", *run.overrides.beta2);
  return name;
}

void Require(const UpdateRun& run, const std::optional<UpdateKernel>& asked) {
  const bool saves =
      run.rounding != WeightRounding::kNearestEven || run.compensation != Compensation::kNone;
  if (!run.updated_weights() && saves) {
    throw UsageError(run.rounding == WeightRounding::kNearestEven ? "--compensation" : "--rounding",
                     "float32 weights need none", "--weights of 16 bits without --master fp32");
  }
  if (run.rounding != WeightRounding::kNearestEven && run.compensation != Compensation::kNone) {
    throw UsageError("--compensation", "stochastic rounding and Kahan exclude each other",
                     "one of them");
  }
  if (asked == UpdateKernel::kForeach && (saves || !HasOneFormat(run))) {
    throw UsageError("--kernel", "only one format without --rounding sr and --compensation kahan",
                     "fused", "'foreach'");
  }
}

UpdateKernel KernelOf(const OptimizerSettings& trained) {
  return trained.is_fused ? UpdateKernel::kFused : UpdateKernel::kForeach;
}

// Fills in what follows from the rest. `kernel`: of a run that both can compute.
UpdateRun Finished(UpdateRun run, UpdateKernel kernel) {
  const bool plain = HasOneFormat(run) && run.rounding == WeightRounding::kNearestEven &&
                     run.compensation == Compensation::kNone;
  run.kernel = plain ? kernel : UpdateKernel::kFused;
  run.name = NameFor(run);
  return run;
}

UpdateRun AskedRun(const UpdateRunRequest& request, const OptimizerSettings& trained) {
  UpdateRun run;
  run.overrides = request.overrides;
  run.rounding = request.rounding;
  run.compensation = request.compensation;
  run.master = ParseMaster(request.master);
  run.weights = ParseOr("--weights", request.weights, std::nullopt);
  const StoredFormat own = run.updated_weights();
  const StoredFormat states = ParseOr("--states", request.states, own);
  run.first = ParseOr("--first", request.first, states);
  run.second = ParseOr("--second", request.second, states);
  run.gradients = ParseOr("--gradients", request.gradients, own);
  Require(run, request.kernel);
  return Finished(run, request.kernel.value_or(KernelOf(trained)));
}

// Returns runs that may do better, the cheapest first. Float32 weights and states always do.
std::vector<UpdateRun> RemediesOf(const UpdateRun& run, const OptimizerSettings& trained) {
  std::vector<UpdateRun> remedies;
  const bool narrow_weights = run.updated_weights().has_value();
  if (narrow_weights) {
    UpdateRun fixed = run;
    fixed.compensation = Compensation::kNone;
    fixed.rounding = WeightRounding::kStochastic;
    remedies.push_back(Finished(fixed, run.kernel));
    fixed.rounding = WeightRounding::kNearestEven;
    fixed.compensation = Compensation::kKahan;
    remedies.push_back(Finished(fixed, run.kernel));
  }
  if (run.second && trained.has_beta2() && trained.beta2 > kDecayingBeta2) {
    UpdateRun other = run;
    other.overrides.beta2 = kDecayingBeta2;
    remedies.push_back(Finished(other, run.kernel));
  }
  if (narrow_weights && trained.has_states() && (run.first || run.second)) {
    UpdateRun wide = run;
    wide.first.reset();
    wide.second.reset();
    remedies.push_back(Finished(wide, run.kernel));
    UpdateRun master = run;
    master.master = true;
    master.rounding = WeightRounding::kNearestEven;
    master.compensation = Compensation::kNone;
    master.gradients = std::nullopt;
    remedies.push_back(Finished(master, run.kernel));
  }
  return remedies;
}

// What people train with.
std::vector<UpdateRun> UsualRuns(const SettingOverrides& overrides,
                                 const OptimizerSettings& trained) {
  const UpdateKernel kernel = KernelOf(trained);
  UpdateRunRequest request;
  request.overrides = overrides;
  request.weights = "bf16";
  std::vector<UpdateRun> runs = {AskedRun(request, trained)};
  request.kernel = kernel == UpdateKernel::kForeach ? UpdateKernel::kFused : UpdateKernel::kForeach;
  runs.push_back(AskedRun(request, trained));
  for (UpdateRun& remedy : RemediesOf(runs.front(), trained)) runs.push_back(std::move(remedy));
  request.kernel.reset();
  request.weights = "fp16";
  runs.push_back(AskedRun(request, trained));
  return runs;
}

}  // namespace

std::string StoredName(const StoredFormat& format) { return format ? format->name : "fp32"; }

UpdateRun ReferenceOf(const SettingOverrides& overrides) {
  UpdateRun run;
  run.name = "fp32";
  run.overrides = overrides;
  return run;
}

std::vector<UpdateRun> MakeUpdateRuns(const UpdateRunRequest& request,
                                      const OptimizerSettings& trained) {
  if (!request.asks_for_formats()) return UsualRuns(request.overrides, trained);
  std::vector<UpdateRun> runs = {AskedRun(request, trained)};
  for (UpdateRun& remedy : RemediesOf(runs.front(), trained)) {
    const auto same = [&](const UpdateRun& run) { return run.name == remedy.name; };
    if (std::ranges::none_of(runs, same)) runs.push_back(std::move(remedy));
  }
  return runs;
}

}  // namespace dlsim::sim
