// SPDX-License-Identifier: Apache-2.0
// The options that several commands share: which trace is read and how, how values are converted,
// the training around a loss-scaling policy, and where to compute. Opens what they name: a trace,
// or a profile of one, and what is to measure it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/codec.h"
#include "dlsim/profile.h"
#include "dlsim/scaled_format.h"
#include "dlsim/sim/advice.h"
#include "dlsim/sim/replay.h"
#include "dlsim/sim/step.h"
#include "dlsim/trace.h"
#include "sim/app/option_rows.h"
#include "sim/base/parse.h"
#include "sim/base/rows.h"
#include "sim/replay/simulation.h"
#include "src/device/compute_device.h"

namespace dlsim::sim {

enum class TraceInput : uint8_t { kTrace, kTraceOrProfile };

struct TraceArguments {
  std::vector<std::string> paths;
  TraceOptions options;

  // TRACE... and the options below. `input` tells the help what the command takes.
  void Visit(OptionRows& option, TraceInput input = TraceInput::kTraceOrProfile);
};

// --tensors, --ranks and --npy-void; and the last of them alone.
void VisitReading(OptionRows& option, TraceOptions& options);
void VisitNpyVoid(OptionRows& option, std::optional<DType>& npy_void);

// Opens the trace that the arguments name, none of them a profile. Throws InputError if it has no
// matching tensor: an empty result would look like a good one.
TraceReader OpenTrace(const TraceArguments& arguments);

// Says that a pattern matches nothing.
std::string NoTensorMatches(const std::string& glob);

// --rounding, --overflow, --subnormals and --seed.
void VisitConversion(OptionRows& option, Conversion& conversion, uint64_t& seed);

// What the user asked for of micro-steps and of steps that make one; a profile decides what was
// not.
struct AskedAccumulation {
  std::optional<Accumulation> rule;
  std::optional<int64_t> steps;
};

// What makes a step skip or end, of the commands that run policies: --finite-test, --check,
// --accumulate and --on-fatal; and those alone that other commands have.
void VisitRules(OptionRows& option, std::optional<FiniteTest>& finite_test,
                AskedAccumulation& accumulation, ReplayOptions& replay);

// --recipe: nothing if it is not given.
void VisitRecipe(OptionRows& option, std::optional<Recipe>& recipe);
void VisitCheck(OptionRows& option, Checked& checked);
void VisitOnFatal(OptionRows& option, OnFatal& on_fatal);
inline constexpr const char* kAccumulateHelp =
    "With micro-steps: quantize each and then sum (quantize-first, default), or sum first and "
    "quantize once (sum-first)";

// How to compute: --device, --threads, and --memory where there is a bound to set.
void VisitComputation(OptionRows& option, DeviceChoice& choice, uint64_t* memory_bytes = nullptr);

// Opens the device for an input of this size in bytes; null is the CPU. For kCuda throws Error
// (exit code 3) if the device is not usable; kAuto then means the CPU.
std::unique_ptr<ComputeDevice> OpenDevice(const DeviceChoice& choice, uint64_t input_bytes);

// Notes what computes, unless it is the CPU.
void NoteDevice(const ComputeDevice* device);

// What users ask a profile to hold, also of Python's writer; errors name `place`. Returns
// ProfileSettings::mantissas for loss scales, of which powers of two need none, and
// ProfileSettings::scaled for the names of formats, without repeated ones. In profile_command.cc.
std::vector<float> MantissasOf(const std::vector<std::string>& scales, const std::string& place);
std::vector<NamedScaledFormat> ScaledFormatsOf(const std::vector<std::string>& names,
                                               const std::string& place);

// Returns whether the input is a profile, which is one folder. Throws UsageError for several, or
// for a profile among traces.
bool IsProfile(const std::vector<std::string>& paths);

struct GradientInput {
  // What the source reads: one of the first two, or what each rank of sharded training wrote.
  std::unique_ptr<TraceReader> trace;
  std::unique_ptr<ProfileReader> profile;
  std::vector<GradientInput> shards = {};

  StepSource source;
  int64_t accumulate_steps = 1;           // recorded steps that make one of it
  std::unique_ptr<ComputeDevice> device;  // null = the CPU
  bool has_gradients = true;              // else a forward pass alone
};

// Whether a command has something to say of a forward pass without gradients.
enum class ForwardAlone : uint8_t { kRefused, kTaken };

// Opens the gradients and the device, which is noted, and completes the options by what was asked
// and by what the profile holds. Throws InputError if no tensor matches or the device is not
// usable, UsageError for what a profile cannot answer.
GradientInput OpenGradients(const AskedAccumulation& asked, TraceArguments& arguments,
                            const DeviceChoice& device, ReplayOptions& replay, ForwardAlone alone);

// Takes parts of the model to be in float32, if some are named.
void KeepInFloat32(const std::vector<std::string>& names, GradientInput& input);
void VisitFloat32(OptionRows& option, std::vector<std::string>& names);

// Throws InputError, exit code 3, that there are no gradients.
[[noreturn]] void RefuseWithoutGradients(const TraceArguments& arguments);

}  // namespace dlsim::sim
