// SPDX-License-Identifier: Apache-2.0
// What a training log says of its loss scale: stretches of steps with the scales and overflows that
// it shows, as exactly as it shows them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/enum_names.h"
#include "sim/explain/printed_loss.h"

namespace dlsim::sim {

// Whose wording a log has.
enum class LogStack : uint8_t {
  kDeepSpeed,
  kApex,
  kMegatron,
  kFairseq,
  kMetaseq,
  kMxnet,
  kPaddle,
  kColossalAi,
  kMindSpore,
  kSwin,
  kFairseq2,
  kTorchNpu,
  kGuidedDiffusion,
  kMmcv,
  kMarian,
  kTrainerState,
  kKeyValue,
  kTable,
};

constexpr auto EnumNames(LogStack) {
  return std::to_array<EnumName<LogStack>>({{LogStack::kDeepSpeed, "deepspeed"},
                                            {LogStack::kApex, "apex"},
                                            {LogStack::kMegatron, "megatron"},
                                            {LogStack::kFairseq, "fairseq"},
                                            {LogStack::kMetaseq, "metaseq"},
                                            {LogStack::kMxnet, "mxnet"},
                                            {LogStack::kPaddle, "paddle"},
                                            {LogStack::kColossalAi, "colossalai"},
                                            {LogStack::kMindSpore, "mindspore"},
                                            {LogStack::kSwin, "swin"},
                                            {LogStack::kFairseq2, "fairseq2"},
                                            {LogStack::kTorchNpu, "torch-npu"},
                                            {LogStack::kGuidedDiffusion, "guided-diffusion"},
                                            {LogStack::kMmcv, "mmcv"},
                                            {LogStack::kMarian, "marian"},
                                            {LogStack::kTrainerState, "trainer-state"},
                                            {LogStack::kKeyValue, "key-value"},
                                            {LogStack::kTable, "table"}});
}

// A number as a log prints it: `low` to `high` are the values that are printed so.
struct PrintedNumber {
  double value = 0, low = 0, high = 0;

  bool Holds(double number) const { return number >= low && number <= high; }
  bool operator==(const PrintedNumber&) const = default;
};

// A step whose gradients were not finite, with the scale that it used and the next one.
struct LoggedOverflow {
  std::optional<PrintedNumber> used = {}, next = {};
  size_t line = 0;  // of the message about it; 0 if a record alone reports it
};

// What is known of the last step of a stretch.
enum class LastStep : uint8_t { kAny, kApplied, kSkipped };

// Steps between two lines of the log.
struct Stretch {
  size_t line = 0;                             // in the logs read in order, from 1
  std::optional<int64_t> steps = {};           // none: unknown, at least those of `overflows`
  std::vector<LoggedOverflow> overflows = {};  // in order; where among the steps is unknown
  LastStep last = LastStep::kAny;
  bool announced = false;                  // scales are those announced, which may act a step later
  bool hides_overflows = false;            // those that do not change the scale go without a word
  std::optional<PrintedNumber> used = {};  // by the last step
  std::optional<PrintedNumber> next = {};  // after the last step
};

// Whose messages about overflows a log has: of none of DeepSpeed's scalers, of its FP16_Optimizer,
// or of ZeRO's, which grew one step earlier before DeepSpeed 0.17.1.
enum class DeepSpeedScaler : uint8_t { kNone, kFp16Optimizer, kBefore0171, kNewest };

struct ScalePath {
  LogStack stack = LogStack::kTable;
  bool from_start = true;                       // false: training began before the log
  int64_t first_step = 1;                       // the log's number of the first step
  bool bounds_nothing = false;                  // as in LogEvents
  std::optional<int64_t> stated_interval = {};  // of growth, where a message names it
  std::vector<Stretch> stretches = {};
  DeepSpeedScaler deepspeed = DeepSpeedScaler::kNone;
  std::optional<size_t> zero_at_line = {};     // the first scale of 0: no gradient is left
  std::optional<size_t> stopped_at_line = {};  // the training ended, its scale at the minimum
  std::vector<std::string> notes = {};         // what was left out or presumed
  LogLosses losses = {};
};

// True if the scales are means over steps, which no policy has.
inline bool HasMeans(const ScalePath& path) {
  return path.bounds_nothing && path.stack == LogStack::kGuidedDiffusion;
}

// True if the number of steps in every stretch is known.
inline bool HasStepCounts(const ScalePath& path) {
  return std::ranges::all_of(path.stretches, [](const Stretch& s) { return s.steps.has_value(); });
}

}  // namespace dlsim::sim
