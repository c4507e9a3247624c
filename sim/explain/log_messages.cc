// SPDX-License-Identifier: Apache-2.0
// The messages of the stacks, in their own wording; each function names the source of its.
#include <algorithm>
#include <array>
#include <cmath>

#include "sim/explain/log_event.h"
#include "sim/explain/log_text.h"

namespace dlsim::sim {
namespace {

using Kind = LogEvent::Kind;

// "[2023-04-18 01:46:52,554] [INFO] ...", as DeepSpeed's logger begins its lines.
std::optional<int> MonthOf(std::string_view line) {
  constexpr std::string_view kForm = "[2000-00-00 00:00:00,000] [";
  const auto fits = [](char form, char given) {
    return form == '0' ? given >= '0' && given <= '9' : form == given;
  };
  for (size_t at = line.find("[20"); at != line.npos; at = line.find("[20", at + 1)) {
    const std::string_view stamp = line.substr(at, kForm.size());
    if (!std::ranges::equal(kForm, stamp, fits)) continue;
    const auto digit = [&](size_t i) { return stamp[i] - '0'; };
    const int year = 2000 + digit(3) * 10 + digit(4);
    return year * 12 + digit(6) * 10 + digit(7) - 1;
  }
  return std::nullopt;
}

// DeepSpeed, runtime/fp16/loss_scaler.py and runtime/zero/stage3.py: "Attempted loss scale: 65536,
// reducing to 32768", or "... but hysteresis is 2. Reducing hysteresis to 1", which keeps it. The
// scales are int() of Python's.
std::optional<LogEvent> DeepSpeedOverflow(std::string_view line) {
  const auto attempted = NumberAfter(line, "Attempted loss scale");
  if (!attempted || !Has(line, "Skipping step")) return std::nullopt;
  LogEvent event = {.stack = LogStack::kDeepSpeed, .kind = Kind::kOverflow};
  event.used = Truncated(*attempted);
  if (Has(line, "but hysteresis is")) {
    event.next = event.used;
  } else if (const auto next = NumberAfter(line, "reducing to")) {
    event.next = Truncated(*next);
  }
  if (!event.next) return std::nullopt;
  event.month = MonthOf(line);
  event.rank = IntegerAfter(line, "Rank");
  event.fp16_optimizer =
      Has(line, "Overflow detected.") || Has(line, "fp16 dynamic loss scale overflow");
  event.from_optimizer = event.fp16_optimizer || Has(line, ":step]");
  return event;
}

// DeepSpeed, runtime/fp16/fused_optimizer.py and unfused_optimizer.py, `verbose`: "Grad overflow on
// iteration: 0", then "Reducing dynamic loss scale from 65536.0 to 32768.0"; "No Grad overflow for
// 1000 iterations", then "Increasing dynamic loss scale from 32768.0 to 65536.0".
std::optional<LogEvent> DeepSpeedFp16Optimizer(std::string_view line) {
  LogEvent event = {.stack = LogStack::kDeepSpeed, .kind = Kind::kOverflow};
  event.fp16_optimizer = true;
  if (Has(line, "Grad overflow on iteration")) {
    event.number = IntegerAfter(line, "iteration");
    if (event.number) return event;
  }
  if (Has(line, "No Grad overflow for")) {
    event.kind = Kind::kGrowth;
    event.interval = IntegerAfter(line, "No Grad overflow for");
    if (event.interval) return event;
  }
  const bool grows = Has(line, "Increasing dynamic loss scale from");
  if (!grows && !Has(line, "Reducing dynamic loss scale from")) return std::nullopt;
  event.used = NumberAfter(line, "scale from");
  const auto rest = TextAfter(line, "scale from");
  event.next = NumberAfter(*rest, "to");
  if (!event.used || !event.next) return std::nullopt;
  if (grows) event.kind = Kind::kGrowth;
  return event;
}

// DeepSpeed, runtime/engine.py: "step=10, skipped=3, lr=[1e-05], mom=[...]" after that many steps.
std::optional<LogEvent> DeepSpeedProgress(std::string_view line) {
  if (!Has(line, "skipped=") || !Has(line, "step=") || !Has(line, "lr=")) return std::nullopt;
  LogEvent event = {.stack = LogStack::kDeepSpeed, .kind = Kind::kSteps};
  event.number = IntegerAfter(line, "step");
  event.skipped_total = IntegerAfter(line, "skipped");
  if (!event.number || !event.skipped_total) return std::nullopt;
  event.learning_rate = NumberAfter(line, "lr");
  event.month = MonthOf(line);
  return event;
}

// Apex, apex/amp/handle.py and _process_optimizer: "Gradient overflow.  Skipping step, loss scaler
// 0 reducing loss scale to 32768.0".
std::optional<LogEvent> Apex(std::string_view line) {
  if (!Has(line, "Gradient overflow.") || !Has(line, "Skipping step")) return std::nullopt;
  LogEvent event = {.stack = LogStack::kApex, .kind = Kind::kOverflow};
  event.next = NumberAfter(line, "reducing loss scale to");
  if (!event.next) return std::nullopt;
  if (IntegerAfter(line, "loss scaler").value_or(0) != 0) event.kind = Kind::kIgnored;
  return event;
}

// Megatron-LM, megatron/training/training.py: the scale after the iteration, and the iterations
// skipped since the last such line, which its first versions do not tell.
std::optional<LogEvent> Megatron(std::string_view line) {
  const auto scale = NumberAfter(line, "loss scale");
  const auto skipped = IntegerAfter(line, "number of skipped iterations");
  const auto iteration = IntegerAfter(line, "iteration");
  if (!scale || !iteration) return std::nullopt;
  if (!skipped && !Has(line, "elapsed time per iteration (ms)")) return std::nullopt;
  LogEvent event = {.stack = LogStack::kMegatron, .kind = Kind::kSteps};
  event.number = iteration;
  event.next = scale;
  event.skipped = skipped;
  const auto norm = NumberAfter(line, "grad norm");
  event.norm_is_nonfinite = skipped == 0 && norm && !std::isfinite(norm->value);
  return event;
}

// fairseq and metaseq, trainer.py: "gradient overflow detected, ignoring gradient, setting loss
// scale to: 64.0"; before fairseq 0.10 "overflow detected, setting loss scale to: 64.0".
std::optional<LogEvent> FairseqOverflow(std::string_view line) {
  if (!Has(line, "overflow detected")) return std::nullopt;
  const auto next = NumberAfter(line, "setting loss scale to");
  if (!next) return std::nullopt;
  LogEvent event = {.stack = LogStack::kFairseq, .kind = Kind::kOverflow};
  event.next = next;
  return event;
}

// fairseq, logging/progress_bar.py: "..., num_updates=100, lr=1e-05, gnorm=2.1, loss_scale=64, ..."
// or the same with blanks and bars; the scale after the update.
std::optional<LogEvent> FairseqUpdates(std::string_view line) {
  const auto updates = IntegerAfter(line, "num_updates");
  const auto scale = NumberAfter(line, "loss_scale");
  if (!updates || !scale) return std::nullopt;
  LogEvent event = {.stack = LogStack::kFairseq, .kind = Kind::kUpdates};
  if (Has(line, "scale_window")) event.stack = LogStack::kMetaseq;
  event.number = updates;
  event.is_rounded_to_zero = !(scale->value > 0);  // a smaller one: 2^-10 is printed as 0
  if (!event.is_rounded_to_zero) event.next = scale;
  return event;
}

// DeepSpeed, runtime/fp16/loss_scaler.py; fairseq, optim/dynamic_loss_scaler.py; GPT-NeoX,
// megatron/utils.py: the exception that ends the training.
std::optional<LogEvent> Stopped(std::string_view line) {
  LogEvent event = {.stack = LogStack::kDeepSpeed, .kind = Kind::kStopped};
  if (Has(line, "Minimum loss scale reached")) {
    event.stack = LogStack::kFairseq;
  } else if (!Has(line, "Current loss scale already at minimum") &&
             !Has(line, "iterations in a row due to Overflow - Exiting")) {
    return std::nullopt;
  }
  return event;
}

// metaseq, optim/dynamic_loss_scaler.py, when it begins: "*** SCALE_WINDOW: 256, loss scale: 4.0".
std::optional<LogEvent> MetaseqStart(std::string_view line) {
  if (!Has(line, "*** SCALE_WINDOW:")) return std::nullopt;
  LogEvent event = {.stack = LogStack::kMetaseq, .kind = Kind::kUpdates};
  event.number = 0;
  event.next = NumberAfter(line, "loss scale");
  if (!event.next) return std::nullopt;
  return event;
}

// MXNet, contrib/amp/loss_scaler.py: "AMP: decreasing loss scale to 32768.000000".
std::optional<LogEvent> Mxnet(std::string_view line) {
  const bool falls = Has(line, "AMP: decreasing loss scale to");
  if (!falls && !Has(line, "AMP: increasing loss scale to")) return std::nullopt;
  LogEvent event = {.stack = LogStack::kMxnet, .kind = falls ? Kind::kOverflow : Kind::kGrowth};
  event.next = NumberAfter(line, "loss scale to");
  if (!event.next) return std::nullopt;
  return event;
}

// Paddle, fluid/dygraph/amp/loss_scaler.py: "Found inf or nan, current scale is: 65536.0, decrease
// to: 65536.0*0.5".
std::optional<LogEvent> Paddle(std::string_view line) {
  const auto rest = TextAfter(line, "Found inf or nan, current scale is: ");
  if (!rest) return std::nullopt;
  LogEvent event = {.stack = LogStack::kPaddle, .kind = Kind::kOverflow};
  event.used = ReadPrinted(*rest);
  const size_t times = rest->find('*');
  if (!event.used || times == std::string_view::npos) return std::nullopt;
  const auto ratio = ReadPrinted(rest->substr(times + 1));
  if (!ratio || event.used->value < 0 || ratio->low < 0) return std::nullopt;
  event.next = {event.used->value * ratio->value, std::max(event.used->low, 0.0) * ratio->low,
                event.used->high * ratio->high};
  return event;
}

// ColossalAI, amp/naive_amp/grad_scaler/dynamic_grad_scaler.py, `verbose`: an overflow that lowers
// the scale, and the growth; overflows before hysteresis is used up say nothing.
std::optional<LogEvent> ColossalAi(std::string_view line) {
  const auto next = NumberAfter(line, "the loss scale is adjusted to");
  if (!next) return std::nullopt;
  const bool falls = Has(line, "Overflow occurs,");
  if (!falls && !Has(line, "No overflow for consecutive")) return std::nullopt;
  LogEvent event = {.stack = LogStack::kColossalAi,
                    .kind = falls ? Kind::kOverflow : Kind::kGrowth};
  event.next = next;
  if (!falls) event.interval = IntegerAfter(line, "consecutive");
  return event;
}

// MindFormers, core/callback/callback.py: "Epoch:[  1/  2], step:[  116/  125], loss: ..., overflow
// cond: False, loss_scale: 16384.0"; the scale after the step.
std::optional<LogEvent> MindFormers(std::string_view line) {
  const auto condition = TextAfter(line, "overflow cond: ");
  const auto scale = NumberAfter(line, "loss_scale");
  const auto step = IntegerAfter(line, "step");
  if (!condition || !scale || !step) return std::nullopt;
  LogEvent event = {.stack = LogStack::kMindSpore, .kind = Kind::kSteps};
  event.number = step;
  const auto steps = TextAfter(line, "step:[");
  if (const auto epoch = IntegerAfter(line, "Epoch"); epoch && steps) {
    event.number = NumberOfStep(*epoch - 1, IntegerAfter(*steps, "/").value_or(0), *step);
  }
  event.next = scale;
  event.overflow = condition->starts_with("True");
  return event;
}

// Swin Transformer and those that took over its main.py: "Train: [29/300][2670/2859] ... loss_scale
// 32768.0000 (34681.8180)", the scale after that step, counted from 0, and its mean.
std::optional<LogEvent> SwinTransformer(std::string_view line) {
  const auto epoch = IntegerAfter(line, "Train: [");
  const auto place = TextAfter(line, "Train: [");
  const auto scale = NumberAfter(line, "loss_scale");
  if (!epoch || !scale) return std::nullopt;
  const auto step = IntegerAfter(*place, "][");
  const auto steps = TextAfter(*place, "][");
  if (!step || !steps) return std::nullopt;
  LogEvent event = {.stack = LogStack::kSwin, .kind = Kind::kSteps};
  event.number = NumberOfStep(*epoch, IntegerAfter(*steps, "/").value_or(0), *step + 1);
  event.next = scale;
  return event;
}

constexpr std::array kRecognizers = {
    DeepSpeedOverflow, DeepSpeedFp16Optimizer, DeepSpeedProgress, Apex,  Megatron, MindFormers,
    FairseqOverflow,   FairseqUpdates,         MetaseqStart,      Mxnet, Paddle,   ColossalAi,
    Stopped,           SwinTransformer};

}  // namespace

std::optional<LogEvent> RecognizeMessage(std::string_view line) {
  for (uint8_t i = 0; i < kRecognizers.size(); ++i) {
    std::optional<LogEvent> event = kRecognizers[i](line);
    if (!event) continue;
    event->wording = i;
    return event;
  }
  return RecognizeScript(line);
}

}  // namespace dlsim::sim
