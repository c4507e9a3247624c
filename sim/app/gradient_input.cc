// SPDX-License-Identifier: Apache-2.0
#include "sim/app/gradient_input.h"

#include <fnmatch.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "dlsim/error.h"
#include "sim/advice/advice.h"
#include "sim/base/caller.h"
#include "sim/base/quantity.h"
#include "sim/replay/step_sources.h"
#include "sim/replay/together.h"

namespace dlsim::sim {
namespace {

// Refuses what was lost when the gradients of a step became its tables.
void RequireSameAccumulation(const ProfileReader& profile, const AskedAccumulation& asked) {
  const ProfileSettings& settings = profile.settings();
  const StepTables first = profile.LoadHead(0);
  const bool micro_steps =
      first.files.size() > 1 || (!first.micro_steps.empty() && first.micro_steps.front() >= 0);
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

bool AnyStep(const StepSource& source, const std::function<bool(const Step& step)>& matches) {
  for (size_t i = 0; i < source.step_count; ++i) {
    if (matches(*source.describe(i))) return true;
  }
  return false;
}

bool HasGradients(const Step& step) { return !step.gradients().empty(); }

bool HasOutputs(const Step& step) {
  return std::ranges::count(step.forward(), Role::kAct, &TensorInfo::role) > 0;
}

// Looks for gradients; no loss scale follows from a forward pass alone.
void FindGradients(const TraceArguments& arguments, ForwardAlone alone, GradientInput& input) {
  input.has_gradients = AnyStep(input.source, HasGradients);
  if (input.has_gradients) return;
  if (alone == ForwardAlone::kTaken && AnyStep(input.source, HasOutputs)) return;
  if (input.trace != nullptr) RequireTensors(arguments, *input.trace);
  RefuseWithoutGradients(arguments);
}

StepSource OpenProfile(const AskedAccumulation& asked, const TraceArguments& arguments,
                       GradientInput& input) {
  const std::string& path = arguments.paths.front();
  input.profile = std::make_unique<ProfileReader>(ProfileReader::Open(path));
  if (input.profile->step_count() == 0) {
    throw InputError(Printable(path), "a profile without steps");
  }
  RequireSameAccumulation(*input.profile, asked);
  RequireSameRanks(*input.profile, arguments.options.ranks);
  return ProfileSteps(*input.profile, arguments.options.tensors);
}

// Opens what the ranks of sharded training wrote. --tensors names whole tensors, not their pieces.
StepSource OpenShards(std::vector<std::string> folders, const AskedAccumulation& asked,
                      const TraceArguments& arguments, GradientInput& input) {
  TraceOptions whole = arguments.options;
  whole.tensors = "*";
  std::vector<StepSource> sources;
  for (const std::string& folder : folders) {
    GradientInput& shard = input.shards.emplace_back();
    if (ProfileReader::IsProfile(folder)) {
      shard.profile = std::make_unique<ProfileReader>(ProfileReader::Open(folder));
      RequireSameAccumulation(*shard.profile, asked);
      sources.push_back(ProfileSteps(*shard.profile, whole.tensors));
    } else {
      shard.trace = std::make_unique<TraceReader>(TraceReader::Open(std::span(&folder, 1), whole));
      sources.push_back(TraceSteps(*shard.trace, asked.steps.value_or(1)));
    }
  }
  return Without(Together(std::move(sources), std::move(folders)),
                 [glob = arguments.options.tensors](const TensorInfo& tensor) {
                   return fnmatch(glob.c_str(), tensor.name.c_str(), 0) != 0;
                 });
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

bool IsProfile(const std::vector<std::string>& paths) {
  const auto is_profile = [](const std::string& path) { return ProfileReader::IsProfile(path); };
  const auto profiles = std::ranges::count_if(paths, is_profile);
  if (profiles == 0 || paths.size() == 1) return profiles == 1;
  throw UsageError("TRACE", "a profile is read on its own", "one profile, or only traces",
                   Counted(paths.size(), "path"));
}

GradientInput OpenGradients(const AskedAccumulation& asked, TraceArguments& arguments,
                            const DeviceChoice& device, ReplayOptions& replay, ForwardAlone alone) {
  replay.step.accumulation = asked.rule.value_or(Accumulation::kQuantizeThenSum);
  replay.accumulate_steps = asked.steps.value_or(1);
  GradientInput input;
  if (auto given = CurrentCaller().GivenGradients(arguments.paths.front())) {
    input.source = std::move(*given);
    FindGradients(arguments, ForwardAlone::kRefused, input);
    return input;
  }
  if (std::vector<std::string> shards = FindShards(arguments.paths); !shards.empty()) {
    input.source = WithoutLosses(OpenShards(std::move(shards), asked, arguments, input));
  } else if (IsProfile(arguments.paths)) {
    input.source = WithoutLosses(OpenProfile(asked, arguments, input));
  } else {
    input.trace =
        std::make_unique<TraceReader>(TraceReader::Open(arguments.paths, arguments.options));
    input.source = WithoutLosses(TraceSteps(*input.trace, replay.accumulate_steps));
  }
  FindGradients(arguments, alone, input);
  if (input.trace != nullptr) {
    input.device = OpenDevice(device, input.source.facts.file_bytes);
    replay.step.device = input.device.get();
  } else if (input.profile != nullptr) {
    // A device has nothing to do then. It is opened if the user names it, so that what is refused
    // does not depend on the input.
    input.device = OpenDevice(device, 0);
    const ProfileSettings& settings = input.profile->settings();
    if (arguments.options.tensors == "*") arguments.options.tensors = settings.tensors;
    replay.step.accumulation = settings.accumulation;
    replay.accumulate_steps = settings.accumulate_steps;
  }
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
