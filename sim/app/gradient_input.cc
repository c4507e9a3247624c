// SPDX-License-Identifier: Apache-2.0
#include "sim/app/gradient_input.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "dlsim/error.h"
#include "sim/advice/change.h"
#include "sim/base/caller.h"
#include "sim/replay/profile_source.h"
#include "sim/replay/trace_source.h"

namespace dlsim::sim {
namespace {

// Refuses what was lost when the gradients of a step became its profile.
void RequireSameAccumulation(const ProfileReader& profile, const AskedAccumulation& asked) {
  const ProfileSettings& settings = profile.settings();
  const ProfileStep first = profile.Load(0);
  const bool micro_steps = first.files.size() > 1 || first.micro_steps.front() >= 0;
  if (micro_steps && asked.rule && *asked.rule != settings.accumulation) {
    throw UsageError("--accumulate", "the profile was made otherwise",
                     NameOf(settings.accumulation), NameOf(*asked.rule));
  }
  if (!asked.steps || *asked.steps == settings.accumulate_steps) return;
  const int64_t recorded = settings.accumulate_steps == 1 && micro_steps
                               ? static_cast<int64_t>(first.files.size())
                               : settings.accumulate_steps;
  if (settings.accumulate_steps == 1 && micro_steps && *asked.steps == recorded) return;
  throw UsageError("grad_accum_steps", "the profile was made otherwise", std::to_string(recorded),
                   std::to_string(*asked.steps));
}

bool AnyStep(const GradientSource& source,
             const std::function<bool(const GradientStep& step)>& matches) {
  for (size_t i = 0; i < source.step_count(); ++i) {
    if (matches(*source.Load(i, StepNeeds::kTensors))) return true;
  }
  return false;
}

bool HasOutputs(const GradientStep& step) {
  return std::ranges::count(step.MeasureForward({}, {}).tensors, Role::kAct, &StepTensor::role) > 0;
}

// Looks for gradients; no loss scale follows from a forward pass alone.
void FindGradients(const TraceArguments& arguments, ForwardAlone alone, GradientInput& input) {
  input.has_gradients =
      AnyStep(*input.source, [](const GradientStep& step) { return !step.Tensors().empty(); });
  if (input.has_gradients) return;
  if (alone == ForwardAlone::kTaken && AnyStep(*input.source, HasOutputs)) return;
  RefuseWithoutGradients(arguments);
}

// A device has nothing to do then. It is opened if the user names it, so that what is refused does
// not depend on the input.
GradientInput OpenProfiles(const AskedAccumulation& asked, TraceArguments& arguments,
                           const DeviceChoice& device, ReplayOptions& replay, ForwardAlone alone) {
  GradientInput input;
  input.profile = std::make_unique<ProfileReader>(ProfileReader::Open(arguments.paths));
  const ProfileSettings& settings = input.profile->settings();
  if (input.profile->step_count() == 0) {
    throw InputError(Printable(arguments.paths.front()), "a profile without steps");
  }
  RequireSameAccumulation(*input.profile, asked);
  RequireSameRanks(*input.profile, arguments.options.ranks);
  auto source = std::make_unique<ProfileSource>(*input.profile, arguments.options.tensors);
  source->LeaveOutLosses();
  input.source = std::move(source);
  FindGradients(arguments, alone, input);
  input.device = OpenDevice(device, 0);
  if (arguments.options.tensors == "*") arguments.options.tensors = settings.tensors;
  replay.step.accumulation = settings.accumulation;
  replay.accumulate_steps = settings.accumulate_steps;
  return input;
}

// Opens what the caller gives: all of it is looked at.
GradientInput OpenGiven(std::unique_ptr<GradientSource> given, const AskedAccumulation& asked,
                        const TraceArguments& arguments, ReplayOptions& replay) {
  GradientInput input;
  input.source = std::move(given);
  RequireTensors(
      arguments, NoTensorMatches(arguments.options.tensors), input.source->step_count(),
      [&](size_t i) { return !input.source->Load(i, StepNeeds::kTensors)->Tensors().empty(); });
  replay.step.accumulation = asked.rule.value_or(Accumulation::kQuantizeThenSum);
  replay.accumulate_steps = asked.steps.value_or(1);
  return input;
}

}  // namespace

void VisitFloat32(OptionRows& option, std::vector<std::string>& names) {
  option("--float32", names, "GLOB",
         "Judge as if these modules, or operations of a module such as 'attn/matmul', stayed in "
         "float32 under autocast; repeatable");
}

void KeepInFloat32(const std::vector<std::string>& names, GradientInput& input) {
  if (names.empty()) return;
  input.source = KeptInFloat32(std::move(input.source), names);
}

bool AreProfiles(const std::vector<std::string>& paths) {
  const std::string* other = nullptr;
  size_t profiles = 0;
  for (const std::string& path : paths) {
    if (ProfileReader::IsProfile(path)) {
      ++profiles;
    } else if (other == nullptr) {
      other = &path;
    }
  }
  if (other == nullptr) return true;
  if (profiles == 0) return false;
  throw UsageError("TRACE", "cannot mix traces and profiles", "only traces, or only profiles",
                   "the trace " + Quoted(*other));
}

GradientInput OpenGradients(const AskedAccumulation& asked, TraceArguments& arguments,
                            const DeviceChoice& device, ReplayOptions& replay, ForwardAlone alone) {
  if (auto given = CurrentCaller().GivenGradients(arguments.paths.front())) {
    return OpenGiven(std::move(given), asked, arguments, replay);
  }
  if (AreProfiles(arguments.paths)) return OpenProfiles(asked, arguments, device, replay, alone);
  replay.step.accumulation = asked.rule.value_or(Accumulation::kQuantizeThenSum);
  replay.accumulate_steps = asked.steps.value_or(1);
  GradientInput input;
  input.trace = std::make_unique<TraceReader>(OpenTrace(arguments));
  auto source = std::make_unique<TraceSource>(*input.trace, replay.accumulate_steps);
  source->LeaveOutLosses();
  input.source = std::move(source);
  FindGradients(arguments, alone, input);
  input.device = OpenDevice(device, input.source->facts().file_bytes);
  replay.step.device = input.device.get();
  return input;
}

void RefuseWithoutGradients(const TraceArguments& arguments) {
  const std::string& glob = arguments.options.tensors;
  throw InputError(Printable(arguments.paths.front()),
                   glob == "*" ? "no gradients" : NoTensorMatches(glob));
}

void NoteDevice(const GradientInput& input) {
  if (input.device != nullptr && input.profile != nullptr) {
    CurrentCaller().Say("note: the CPU answers for a profile, not " +
                        Printable(input.device->name()));
    return;
  }
  NoteDevice(input.device.get());
}

}  // namespace dlsim::sim
