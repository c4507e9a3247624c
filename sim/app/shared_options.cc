// SPDX-License-Identifier: Apache-2.0
#include "sim/app/shared_options.h"

#include <fnmatch.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dlsim/error.h"
#include "dlsim/gpu.h"
#include "dlsim/profile.h"
#include "sim/advice/advice.h"
#include "sim/base/caller.h"
#include "sim/base/parse.h"
#include "sim/base/quantity.h"
#include "sim/replay/replay_runs.h"
#include "sim/replay/step_sources.h"
#include "sim/replay/together.h"

namespace dlsim::sim {

void VisitNpyVoid(OptionRows& option, std::optional<DType>& npy_void) {
  option.Choice<DType>("--npy-void", npy_void, {{"bf16", DType::kBF16}}, "bf16",
                       "Read NumPy's dtype V2 as bf16: ml_dtypes saves bfloat16 this way");
}

void VisitReading(OptionRows& option, TraceOptions& options) {
  option.Group(kInputGroup);
  option("--tensors", options.tensors, "GLOB",
         "Read only the tensors whose names match this pattern (* ? [])");
  option("--ranks", options.ranks, "NAME",
         "How the gradients of several data-parallel ranks are combined: mean (default) or sum");
  VisitNpyVoid(option, options.npy_void2);
}

void TraceArguments::Visit(OptionRows& option, TraceInput input) {
  const char* const profiles = input == TraceInput::kTraceOrProfile ? "; or a profile of one" : "";
  option
      .Argument("TRACE", paths,
                std::string("A directory of step-*.safetensors or act_dumps*.npz, a .safetensors "
                            "file, a *.safetensors.index.json, a .npy or a .npz; several are read "
                            "one after another") +
                    profiles)
      .required = true;
  VisitReading(option, options);
}

std::string NoTensorMatches(const std::string& glob) {
  return "no tensor matches --tensors " + Quoted(glob);
}

namespace {

// Throws InputError if no step has a matching tensor: an empty result would look like a good one.
void RequireTensors(const TraceArguments& arguments, const TraceReader& trace) {
  for (size_t i = 0; i < trace.step_count(); ++i) {
    for (const Recording& recording : trace.Load(i).recordings) {
      if (!recording.tensors.empty()) return;
    }
  }
  const std::string& glob = arguments.options.tensors;
  throw InputError(Printable(arguments.paths.front()),
                   glob == "*" ? "no tensors" : NoTensorMatches(glob));
}

}  // namespace

TraceReader OpenTrace(const TraceArguments& arguments) {
  TraceReader trace = TraceReader::Open(arguments.paths, arguments.options);
  RequireTensors(arguments, trace);
  return trace;
}

void VisitConversion(OptionRows& option, Conversion& conversion, uint64_t& seed) {
  option.Group(kEmulationGroup);
  option("--rounding", conversion.rounding, "MODE",
         "rne (default): to nearest, ties to even; rtz: toward zero; rna: to nearest, ties away "
         "from zero; ru, rd: up, "
         "down; sr: stochastic");
  option("--overflow", conversion.overflow, "RULE",
         "inf (default): overflow to infinity, as IEEE 754; saturate: clamp to the largest finite "
         "value");
  option("--subnormals", conversion.subnormals, "RULE",
         "keep (default), or flush: subnormal results become zero");
  option("--seed", seed, "Seed of stochastic rounding");
}

void VisitRules(OptionRows& option, std::optional<FiniteTest>& finite_test,
                AskedAccumulation& accumulation, ReplayOptions& replay) {
  option("--finite-test", finite_test, "RULE",
         "Rule that decides whether a step is finite: elementwise, unscaled-elementwise, "
         "global-norm, scaled-norm or sum (default: the policy's own)");
  VisitCheck(option, replay.checked);
  option("--accumulate", accumulation.rule, "RULE", kAccumulateHelp);
  VisitOnFatal(option, replay.on_fatal);
}

void VisitRecipe(OptionRows& option, std::optional<Recipe>& recipe) {
  option("--recipe", recipe, "NAME",
         "Which values of the forward pass are in 16 bits: those that torch.amp's autocast rounds "
         "(autocast, default), or all, as with model.half(), DeepSpeed and Megatron (half)");
}

void VisitCheck(OptionRows& option, Checked& checked) {
  option("--check", checked, "RULE",
         "Which gradients cause a skipped step if they hold Inf or NaN: those of parameters "
         "(grad, default), or those of activations as well (all)");
}

void VisitOnFatal(OptionRows& option, OnFatal& on_fatal) {
  option("--on-fatal", on_fatal, "RULE",
         "What to do where the original software would raise a fatal error: stop (default) or "
         "continue");
}

void VisitComputation(OptionRows& option, DeviceChoice& choice, uint64_t* memory_bytes) {
  option.Group(kComputationGroup);
  option.Read("--device", [&choice](const std::string& text) { choice = ParseDevice(text); },
              "auto|cpu|cuda[:N]",
              "Where to compute: cpu, cuda, cuda:N, or auto (default): a CUDA device for 1 GiB of "
              "input or more, else the CPU; the results are the same",
              {"auto", "cpu", "cuda"});
  option.Threads();
  if (memory_bytes != nullptr) option.Memory(*memory_bytes);
}

std::unique_ptr<ComputeDevice> OpenDevice(const DeviceChoice& choice, uint64_t input_bytes) {
  switch (choice.kind) {
    case DeviceChoice::Kind::kCpu:
      return nullptr;
    case DeviceChoice::Kind::kCuda:
      return gpu::OpenDevice(choice.index);
    case DeviceChoice::Kind::kAuto:
      break;
  }
  // Starting CUDA takes some tenths of a second, in which the CPU reads and counts about as much.
  // Chosen by that estimate, not measured on a GPU.
  constexpr uint64_t kAutoDeviceBytes = uint64_t{1} << 30;
  if (input_bytes < kAutoDeviceBytes) return nullptr;
  for (const gpu::DeviceInfo& device : gpu::Devices().devices) {
    try {
      return gpu::OpenDevice(device.index);
    } catch (const Error&) {  // in use by another process alone, or too old
    }
  }
  return nullptr;
}

void NoteDevice(const ComputeDevice* device) {
  if (device == nullptr) return;
  CurrentCaller().Note("computes on " + Printable(device->name()));
}

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

// Looks for gradients; no loss scale follows from a forward pass alone.
void FindGradients(const TraceArguments& arguments, ForwardAlone alone, GradientInput& input) {
  const auto has_outputs = [](const Step& step) {
    return std::ranges::count(step.forward(), Role::kAct, &TensorInfo::role) > 0;
  };
  input.has_gradients =
      AnyStep(input.source, [](const Step& step) { return !step.gradients().empty(); });
  if (input.has_gradients) return;
  if (alone == ForwardAlone::kTaken && AnyStep(input.source, has_outputs)) return;
  if (input.trace != nullptr) RequireTensors(arguments, *input.trace);
  RefuseWithoutGradients(arguments);
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
  GradientInput input;
  input.accumulate_steps = asked.steps.value_or(1);
  if (auto given = CurrentCaller().GivenGradients(arguments.paths.front())) {
    input.source = std::move(*given);
    FindGradients(arguments, ForwardAlone::kRefused, input);
    return input;
  }
  if (std::vector<std::string> shards = FindShards(arguments.paths); !shards.empty()) {
    input.source = WithoutLosses(OpenShards(std::move(shards), asked, arguments, input));
  } else if (IsProfile(arguments.paths)) {
    const std::string& path = arguments.paths.front();
    input.profile = std::make_unique<ProfileReader>(ProfileReader::Open(path));
    if (input.profile->step_count() == 0) {
      throw InputError(Printable(path), "a profile without steps");
    }
    RequireSameAccumulation(*input.profile, asked);
    RequireSameRanks(*input.profile, arguments.options.ranks);
    input.source = WithoutLosses(ProfileSteps(*input.profile, arguments.options.tensors));
  } else {
    input.trace =
        std::make_unique<TraceReader>(TraceReader::Open(arguments.paths, arguments.options));
    input.source = WithoutLosses(TraceSteps(*input.trace, input.accumulate_steps));
  }
  FindGradients(arguments, alone, input);
  if (input.trace != nullptr) {
    input.device = OpenDevice(device, input.source.facts.file_bytes);
    replay.step.device = input.device.get();
    NoteDevice(input.device.get());
  } else if (input.profile != nullptr) {
    // A device has nothing to do then. It is opened if the user names it, so that what is refused
    // does not depend on the input.
    input.device = OpenDevice(device, 0);
    if (input.device != nullptr) {
      CurrentCaller().Note("the CPU answers for a profile, not " + Printable(input.device->name()));
    }
    const ProfileSettings& settings = input.profile->settings();
    if (arguments.options.tensors == "*") arguments.options.tensors = settings.tensors;
    replay.step.accumulation = settings.accumulation;
    input.accumulate_steps = settings.accumulate_steps;
  }
  return input;
}

void RefuseWithoutGradients(const TraceArguments& arguments) {
  const std::string& glob = arguments.options.tensors;
  throw InputError(Printable(arguments.paths.front()),
                   glob == "*" ? "no gradients" : NoTensorMatches(glob));
}

}  // namespace dlsim::sim
