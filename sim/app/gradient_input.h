// SPDX-License-Identifier: Apache-2.0
// Opens what a command takes for a trace: a trace, or a profile of one, and what is to measure it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/profile.h"
#include "dlsim/sim/replay.h"
#include "dlsim/sim/step.h"
#include "sim/app/shared_options.h"

namespace dlsim::sim {

// Returns whether the input is a profile, which is one folder. Throws UsageError for several, or
// for a profile among traces.
bool IsProfile(const std::vector<std::string>& paths);

struct GradientInput {
  // What the source reads: one of the first two, or what each rank of sharded training wrote.
  std::unique_ptr<TraceReader> trace;
  std::unique_ptr<ProfileReader> profile;
  std::vector<GradientInput> shards = {};

  StepSource source;
  std::unique_ptr<ComputeDevice> device;  // null = the CPU
  bool has_gradients = true;              // else a forward pass alone
};

// Whether a command has something to say of a forward pass without gradients.
enum class ForwardAlone : uint8_t { kRefused, kTaken };

// Opens the gradients and the device, and completes the options by what was asked and by what the
// profile holds. Throws InputError if no tensor matches or the device is not usable, UsageError for
// what a profile cannot answer.
GradientInput OpenGradients(const AskedAccumulation& asked, TraceArguments& arguments,
                            const DeviceChoice& device, ReplayOptions& replay, ForwardAlone alone);

// Takes parts of the model to be in float32, if some are named.
void KeepInFloat32(const std::vector<std::string>& names, GradientInput& input);
void VisitFloat32(OptionRows& option, std::vector<std::string>& names);

// Throws InputError, exit code 3, that there are no gradients.
[[noreturn]] void RefuseWithoutGradients(const TraceArguments& arguments);

// Tells on standard error what measures, unless it is the CPU as usual.
void NoteDevice(const GradientInput& input);

}  // namespace dlsim::sim
