// SPDX-License-Identifier: Apache-2.0
// What one line of a training log says of the loss scale.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "sim/explain/scale_path.h"

namespace dlsim::sim {

struct LogEvent {
  enum class Kind : uint8_t {
    kOverflow,  // a step was skipped; `number` is its index from 0 if the line has it
    kGrowth,    // the scale grew
    kSteps,     // the state after `number` steps, or of the step of that number
    kUpdates,   // the state after `number` applied steps
    kSeen,      // the scale after some step since the record before
    kStopped,   // the training ended, since the scale could fall no more
    kIgnored,   // of a known wording, but it adds nothing
  };

  LogStack stack = LogStack::kKeyValue;
  Kind kind = Kind::kSteps;
  size_t line = 0;
  std::optional<int64_t> number = {};
  std::optional<int64_t> epoch = {};  // if `number` restarts with each
  std::optional<PrintedNumber> used = {}, next = {};
  std::optional<bool> overflow = {};          // of the step of that number
  std::optional<int64_t> skipped = {};        // steps since the record before
  std::optional<int64_t> skipped_total = {};  // steps since the start
  std::optional<int64_t> interval = {};       // of growth
  std::optional<int64_t> rank = {};
  bool norm_is_nonfinite = false;   // of the gradient of a step that was applied
  bool from_optimizer = false;      // DeepSpeed: by its optimizer, which may repeat its loss scaler
  bool fp16_optimizer = false;      // DeepSpeed: by that without ZeRO, which scales the loss itself
  bool key_value = false;           // a name and a value, in the wording of no stack
  bool mean = false;                // the scale is a mean over the steps since the record before
  int64_t median_of = 1;            // steps, if the scale is a median
  bool counts_falls = false;        // `skipped` has been counted from the falls of the scale
  bool is_rounded_to_zero = false;  // fairseq: the scale is less than half of its last digit
  uint8_t wording = 0;              // whose line it is: two wordings may report one overflow
  bool bare_name = false;           // the key is "scale" alone, and nothing says of what
  std::optional<PrintedNumber> learning_rate = {};  // DeepSpeed: tells two engines apart
  std::optional<int> month = {};                    // DeepSpeed: of the line, counted from year 0
  std::optional<double> loss = {};                  // of a table's row, or of a JSON's entry
};

// Lines in the wording of no stack.
inline constexpr uint8_t kKeyValueWording = 255;

// Returns what the message says in the wording of a stack; nothing for other lines. `line` has no
// terminal codes.
std::optional<LogEvent> RecognizeMessage(std::string_view line);

// The same for the wording of training scripts and of smaller stacks.
std::optional<LogEvent> RecognizeScript(std::string_view line);

// True for a line of settings, which names a scale and may name a step: DeepSpeed's
// "loss_scale": 0 asks for a dynamic one.
bool PrintsSettings(std::string_view line);

// Returns the number of the step that a line names; nothing if that is no count of steps.
std::optional<int64_t> StepNumber(std::string_view line);

// The same as RecognizeMessage for lines of JSON: those of fairseq and metaseq, and objects with a
// step and a scale.
std::optional<LogEvent> RecognizeJson(std::string_view line);

// The same for a line that has a step and a scale as "name: value" or "name=value"; a step
// may be written as "[100] name=value".
std::optional<LogEvent> RecognizeKeyValue(std::string_view line);

}  // namespace dlsim::sim
