// SPDX-License-Identifier: Apache-2.0
// The messages of training scripts and of smaller stacks; each function names the source of its.
#include <algorithm>
#include <array>
#include <cmath>

#include "sim/explain/guided_diffusion.h"
#include "sim/explain/log_event.h"
#include "sim/explain/log_text.h"

namespace dlsim::sim {
namespace {

using Kind = LogEvent::Kind;

// fairseq2, optim/fp16_loss_scaler.py: "Overflow detected at step 1, ignoring gradient, decreasing
// loss scale from 128 to 64", which ends the training at the minimum. Its newer versions repeat a
// skipped step, so that the number gives no step.
std::optional<LogEvent> Fairseq2(std::string_view line) {
  LogEvent event = {.stack = LogStack::kFairseq2, .kind = Kind::kOverflow};
  if (Has(line, "Overflow detected") && Has(line, "ignoring gradient, loss scale is already at")) {
    event.kind = Kind::kStopped;
    event.used = NumberAfter(line, "already at minimum");
    return event;
  }
  const bool grows = Has(line, "No gradient overflow detected in the last");
  const auto rest = TextAfter(
      line, grows ? "increasing loss scale from" : "ignoring gradient, decreasing loss scale from");
  if (!rest) return std::nullopt;
  event.used = NumberAfter(line, "loss scale from");
  event.next = NumberAfter(*rest, "to");
  if (!event.used || !event.next) return std::nullopt;
  if (grows) {
    event.kind = Kind::kGrowth;
    event.interval = IntegerAfter(line, "in the last");
  }
  return event;
}

// icefall, egs/librispeech/ASR/zipformer/train.py and icefall/err.py: the exception that ends the
// training, and the warning before it, which names no step: "Grad scale is small: 0.0078125".
std::optional<LogEvent> Icefall(std::string_view line) {
  LogEvent event = {.stack = LogStack::kKeyValue, .kind = Kind::kStopped};
  event.used = NumberAfter(line, "grad_scale is too small, exiting");
  if (!event.used) {
    event.kind = Kind::kSeen;
    event.used = NumberAfter(line, "Grad scale is small:");
  }
  if (!event.used) return std::nullopt;
  return event;
}

// torch_npu, npu/amp/grad_scaler.py: "Gradient overflow. Skipping step", and in the next line "Loss
// scaler reducing loss scale to 32768.0".
std::optional<LogEvent> TorchNpu(std::string_view line) {
  const auto next = NumberAfter(line, "Loss scaler reducing loss scale to");
  if (!next) return std::nullopt;
  LogEvent event = {.stack = LogStack::kTorchNpu, .kind = Kind::kOverflow};
  event.next = next;
  return event;
}

// mmcv, runner/hooks/optimizer.py, before torch 1.6: "Check overflow, downscale loss scale to
// 32768.0".
std::optional<LogEvent> Mmcv(std::string_view line) {
  const auto next = NumberAfter(line, "Check overflow, downscale loss scale to");
  if (!next) return std::nullopt;
  LogEvent event = {.stack = LogStack::kMmcv, .kind = Kind::kOverflow};
  event.next = next;
  return event;
}

// PaddleNLP, trainer/trainer.py: "optimizer not run, scale_before: 32768.0, scale_after: 16384.0".
std::optional<LogEvent> PaddleNlp(std::string_view line) {
  if (!Has(line, "optimizer not run")) return std::nullopt;
  LogEvent event = {.stack = LogStack::kPaddle, .kind = Kind::kOverflow};
  event.used = NumberAfter(line, "scale_before");
  event.next = NumberAfter(line, "scale_after");
  if (!event.used || !event.next) return std::nullopt;
  return event;
}

// apex/fp16_utils of 2018 and its copies, as in tacotron2: "OVERFLOW! Skipping step. Attempted loss
// scale: 4294967296", without the next one.
std::optional<LogEvent> Fp16Utils(std::string_view line) {
  const auto used = NumberAfter(line, "OVERFLOW! Skipping step. Attempted loss scale");
  if (!used || Has(line, "reducing to")) return std::nullopt;
  LogEvent event = {.stack = LogStack::kApex, .kind = Kind::kOverflow};
  event.used = used;
  return event;
}

// DLLogger in NVIDIA's BERT: "DLL 2020-01-01 00:00:00 - PARAMETER loss_scale : 524288.0" at each
// overflow.
std::optional<LogEvent> DlLogger(std::string_view line) {
  const auto next = NumberAfter(line, "PARAMETER loss_scale");
  if (!next || !Has(line, "DLL ") || !(next->value > 0)) return std::nullopt;
  LogEvent event = {.stack = LogStack::kApex, .kind = Kind::kOverflow};
  event.next = next;
  return event;
}

// Marian, training/graph_group.cpp: the cost-scaling factor is "Reduced ... to 128" ("reducing ...
// to" in older versions), "Reduced ... to minimum 8", from where on NaN is replaced by 0, and
// "Increasing ... to 256"; a version between these skipped updates at the minimum.
std::optional<LogEvent> Marian(std::string_view line) {
  const auto factor = TextAfter(line, "cost-scaling factor");
  if (!factor) return std::nullopt;
  LogEvent event = {.stack = LogStack::kMarian, .kind = Kind::kOverflow};
  if (Has(*factor, "is already at minimum")) {
    event.kind = Kind::kStopped;
    event.used = NumberAfter(line, "cost-scaling factor");
    return event.used ? std::optional(event) : std::nullopt;
  }
  event.next = NumberAfter(line, "cost-scaling factor to minimum");
  if (!event.next) event.next = NumberAfter(line, "cost-scaling factor to");
  if (!event.next) return std::nullopt;
  if (Has(line, "Increasing")) {
    event.kind = Kind::kGrowth;
    event.interval = IntegerAfter(line, "No NaN/Inf after");
  }
  return event;
}

// MetricLogger of BEiT, VideoMAE, EVA and others: "Epoch: [0]  [  10/100] ... loss_scale:
// 16384.0000 (30000.0000)", the median of the scales after the last 20 steps, counted from 0, and
// their mean.
std::optional<LogEvent> MetricLogger(std::string_view line) {
  const auto scale = NumberAfter(line, "loss_scale");
  const auto epoch = IntegerAfter(line, "Epoch: [");
  const auto rest = TextAfter(line, "Epoch: [");
  const auto text = TextAfter(line, "loss_scale: ");
  if (!scale || !epoch || !rest || !text) return std::nullopt;
  const size_t blank = text->find(' ');
  if (blank == text->npos || text->substr(blank, 2) != " (") return std::nullopt;
  const auto step = IntegerAfter(*rest, "["), steps = IntegerAfter(*rest, "/");
  if (!step || !steps || *step < 0 || *step >= *steps) return std::nullopt;
  LogEvent event = {.stack = LogStack::kKeyValue, .kind = Kind::kSteps};
  event.number = NumberOfStep(*epoch, *steps, *step + 1);
  event.next = scale;
  event.median_of = std::min<int64_t>(*step + 1, 20);
  return event;
}

// ESPnet, espnet2/train/reporter.py: "1epoch:train:101-200batch: ..., loss_scale=3.277e+04, ...",
// the mean over those batches of the scale that they used.
std::optional<LogEvent> EspNet(std::string_view line) {
  const size_t at = line.find("epoch:train:");
  const auto scale = NumberAfter(line, "loss_scale");
  if (at == line.npos || !scale) return std::nullopt;
  size_t start = at;
  while (start > 0 && line[start - 1] >= '0' && line[start - 1] <= '9') --start;
  const std::string_view batches = line.substr(at, line.find("batch:", at) - at);
  const auto epoch = ReadPrinted(line.substr(start));
  const auto last = IntegerAfter(batches, "-");
  if (!epoch || !last || batches.size() + at >= line.size()) return std::nullopt;
  LogEvent event = {.stack = LogStack::kKeyValue, .kind = Kind::kSteps};
  event.number = last;
  event.epoch = static_cast<int64_t>(epoch->value);
  event.used = scale;
  event.mean = true;
  return event;
}

// MindSpore's model zoo prints what the training cell returns: the loss, whether a gradient
// overflowed, and the scale.
std::optional<LogEvent> MindSporeOutputs(std::string_view line) {
  const auto loss = TextAfter(line, "outputs are (Tensor(");
  const auto step = IntegerAfter(line, "step");
  if (!loss || !step) return std::nullopt;
  const auto overflow = TextAfter(*loss, "Bool, value=");
  const auto scale = overflow ? TextAfter(*overflow, "Tensor(") : std::nullopt;
  if (!scale) return std::nullopt;
  LogEvent event = {.stack = LogStack::kMindSpore, .kind = Kind::kSteps};
  event.number = step;
  event.used = NumberAfter(*scale, "value");
  if (!event.used) return std::nullopt;
  event.overflow = overflow->substr(0, overflow->find(')')).find("True") != overflow->npos;
  return event;
}

constexpr std::array kScripts = {Fairseq2, Icefall,   TorchNpu,     GuidedDiffusion,
                                 Mmcv,     PaddleNlp, Fp16Utils,    DlLogger,
                                 Marian,   EspNet,    MetricLogger, MindSporeOutputs};

}  // namespace

std::optional<LogEvent> RecognizeScript(std::string_view line) {
  for (size_t i = 0; i < kScripts.size(); ++i) {
    std::optional<LogEvent> event = kScripts[i](line);
    if (!event) continue;
    event->wording = static_cast<uint8_t>(100 + i);  // after those of RecognizeMessage
    return event;
  }
  return std::nullopt;
}

}  // namespace dlsim::sim
