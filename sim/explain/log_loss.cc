// SPDX-License-Identifier: Apache-2.0
// Lines that print the loss of the training; what the loss of a stack is a mean of, its own source
// says, which is named here.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <system_error>

#include "sim/base/word_character.h"
#include "sim/explain/guided_diffusion.h"
#include "sim/explain/log_event.h"
#include "sim/explain/log_text.h"
#include "sim/explain/printed_loss.h"

namespace dlsim::sim {
namespace {

// The clearest first.
constexpr std::array<std::string_view, 14> kLossNames = {
    "lm loss",       "lm_loss",       "train_loss_step", "loss_step",  "total_loss", "total loss",
    "training_loss", "training loss", "train_loss",      "train loss", "Train loss", "Train Loss",
    "loss",          "Loss"};

// Beginnings of words that make a loss another one than that of a step of the training.
constexpr std::array<std::string_view, 10> kOtherRuns = {
    "valid", "Valid", "VALID", "eval", "Eval", "val_", "val ", "Val ", "test_", "train_runtime"};

// Words right before "loss" that leave it the loss of the training: others name a part of it, or a
// mean ("kl loss", "average loss").
constexpr std::array<std::string_view, 8> kPlainWords = {"train", "Train", "training", "Training",
                                                         "total", "step",  "batch",    "INFO"};

bool IsLetter(char c) { return IsWordCharacter(c) && c != '_' && (c < '0' || c > '9'); }

bool HasWordBeginning(std::string_view line, std::string_view start) {
  for (size_t at = line.find(start); at != line.npos; at = line.find(start, at + 1)) {
    if (at == 0 || !IsWordCharacter(line[at - 1])) return true;
  }
  return false;
}

// Whether with the word before `at`, blanks between, the loss is still that of the training.
bool IsPlain(std::string_view line, size_t at) {
  size_t end = at;
  while (end > 0 && line[end - 1] == ' ') --end;
  if (end == at || end == 0 || !IsLetter(line[end - 1])) return true;
  size_t start = end;
  while (start > 0 && IsWordCharacter(line[start - 1])) --start;
  const std::string_view word = line.substr(start, end - start);
  return std::ranges::find(kPlainWords, word) != kPlainWords.end();
}

// Reads "2.31", "nan", "tensor(nan, ...", "is inf"; "information" is no number.
std::optional<double> ReadLoss(std::string_view text) {
  constexpr std::string_view kBetween = " \t:=\"'[(";
  for (const std::string_view before : {"", "is", "tensor", ""}) {
    text.remove_prefix(std::min(text.find_first_not_of(kBetween), text.size()));
    if (!before.empty() && text.starts_with(before)) text.remove_prefix(before.size());
  }
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::invalid_argument) return std::nullopt;
  const auto length = static_cast<size_t>(end - text.data());
  if (length < text.size() && IsWordCharacter(text[length])) return std::nullopt;
  // A number that is too small or too large for a double is one.
  return error == std::errc::result_out_of_range ? 0 : value;
}

// False if no name of kLossNames with a number follows: each ends in "oss", or in "oss_step".
bool MayHaveLoss(std::string_view line) {
  constexpr std::string_view kEnd = "oss", kStep = "_step";
  for (size_t at = line.find(kEnd); at != line.npos; at = line.find(kEnd, at + 1)) {
    std::string_view rest = line.substr(at + kEnd.size());
    if (rest.starts_with(kStep)) rest.remove_prefix(kStep.size());
    if (ReadLoss(rest)) return true;
  }
  return false;
}

struct FoundLoss {
  double value = 0;
  std::string_view name, rest;  // what follows the name
};

std::optional<FoundLoss> FindLoss(std::string_view line) {
  if (!MayHaveLoss(line)) return std::nullopt;
  for (const std::string_view name : kLossNames) {
    for (size_t at = line.find(name); at != line.npos; at = line.find(name, at + 1)) {
      const size_t end = at + name.size();
      if (at > 0 && IsWordCharacter(line[at - 1])) continue;
      if (end == line.size() || IsWordCharacter(line[end])) continue;
      if (!IsPlain(line, at)) continue;
      const std::string_view rest = line.substr(end);
      if (const auto value = ReadLoss(rest)) return FoundLoss{*value, name, rest};
    }
  }
  return std::nullopt;
}

// logger.py of guided-diffusion: a row "| loss          | 0.1      |", a mean since the table
// before.
std::optional<PrintedLoss> LossRow(std::string_view line) {
  const size_t name = line.find_first_not_of(" |");
  if (name == line.npos || line.find('|') > name || !line.substr(name).starts_with("loss ")) {
    return std::nullopt;
  }
  const auto cell = TextAfter(line.substr(name), "|");
  const auto value = cell ? ReadLoss(*cell) : std::nullopt;
  if (!value) return std::nullopt;
  return PrintedLoss{.value = *value, .over = LossOver::kSteps};
}

// MindSpore's model zoo: the first of the tensors that the training cell returns.
std::optional<PrintedLoss> FirstOutput(std::string_view line) {
  const auto outputs = TextAfter(line, "outputs are (Tensor(");
  const auto text = outputs ? TextAfter(*outputs, "value=") : std::nullopt;
  const auto value = text ? ReadLoss(*text) : std::nullopt;
  if (!value) return std::nullopt;
  return PrintedLoss{.value = *value, .step = StepNumber(line)};
}

// A bar of tqdm shows the loss that it was given last, which may be of the step before.
bool IsProgressBar(std::string_view line) {
  return (Has(line, "it/s") || Has(line, "s/it")) && Has(line, "|") && Has(line, "[");
}

LossOver OverWhich(std::string_view line, std::string_view name) {
  // fairseq and metaseq, trainer.py: a step that overflows is not logged.
  if (Has(line, "num_updates")) return LossOver::kApplied;
  // Megatron-LM, training_log: skipped iterations are left out, and of these it counts losses that
  // are not finite. Under DeepSpeed no iteration is reported as skipped: then the mean has them
  // all.
  if (Has(line, "elapsed time per iteration (ms)")) return LossOver::kApplied;
  // ESPnet, espnet2/train/reporter.py: the weighted mean of those that are finite.
  if (Has(line, "epoch:train:")) return LossOver::kFinite;
  // Hugging Face's Trainer, logging_nan_inf_filter, which is on by default.
  if (Has(line, "'loss':") && Has(line, "'epoch':")) return LossOver::kFinite;
  // Lightning, the step's own value and its mean; PyTorch Lightning 1's "loss" is a mean
  // over 20.
  if (name.ends_with("_step")) return LossOver::kStep;
  if (Has(line, "v_num=") || Has(line, "interval_runtime") || IsProgressBar(line)) {
    return LossOver::kUnknown;
  }
  if (Has(line, kLog2ScaleName)) return LossOver::kSteps;  // guided-diffusion, logkv_mean
  // mmcv and mmengine, TextLoggerHook: a mean over the interval.
  if (Has(line, "eta:") && Has(line, "lr:") && (Has(line, "Epoch [") || Has(line, "Iter ["))) {
    return LossOver::kSteps;
  }
  return LossOver::kStep;
}

// "Epoch: [0][10/5005]" and "Train: [29/300][2670/2859]".
std::optional<int64_t> StepOf(std::string_view line) {
  const size_t at = line.find("][");
  if (at != line.npos) {
    const auto number = IntegerAfter(line.substr(at), "][");
    if (number && Has(line.substr(at), "/")) return number;
  }
  return StepNumber(line);
}

// Swin Transformer's "loss 3.1 (3.2)" has the step's value and the mean since the epoch began;
// MetricLogger's "loss: 3.1 (3.2)" a median and that mean.
void AddEpochMean(std::string_view line, std::string_view rest, PrintedLoss& loss) {
  const bool is_swin = Has(line, "Train: ["), is_metric_logger = Has(line, "Epoch: [");
  if ((!is_swin && !is_metric_logger) || !Has(line, "loss_scale")) return;
  if (is_metric_logger) loss.over = LossOver::kUnknown;
  const size_t open = rest.find('(');
  const size_t number = rest.find_first_not_of(" :\t");
  if (open == rest.npos || number == rest.npos || rest.find(' ', number) + 1 != open) return;
  loss.epoch_mean = ReadLoss(rest.substr(open));
}

bool HasNonfiniteNorm(std::string_view line) {
  static constexpr std::array<std::string_view, 3> kNames = {"grad_norm", "grad norm", "gnorm"};
  return std::ranges::any_of(kNames, [&](std::string_view name) {
    const auto norm = NumberAfter(line, name);
    return norm && !std::isfinite(norm->value);
  });
}

// The loss of a run that may be another one than the training.
std::optional<PrintedLoss> LossOfAnyRun(std::string_view line) {
  if (auto loss = LossRow(line)) return loss;
  if (auto loss = FirstOutput(line)) return loss;
  PrintedLoss loss;
  loss.nonfinite = IntegerAfter(line, "number of nan iterations");
  const auto found = FindLoss(line);
  if (!found && !loss.nonfinite) return std::nullopt;
  loss.skipped = IntegerAfter(line, "number of skipped iterations");
  // Megatron-LM prints no loss where it has skipped each iteration.
  if (!found && loss.skipped.value_or(0) == 0) return std::nullopt;
  loss.step = StepOf(line);
  if (found) loss.value = found->value;
  loss.over = OverWhich(line, found ? found->name : std::string_view());
  if (found) AddEpochMean(line, found->rest, loss);
  loss.norm_is_nonfinite = HasNonfiniteNorm(line);
  return loss;
}

}  // namespace

bool IsNonfinite(const PrintedLoss& loss) {
  // Where it leaves out all of them, Hugging Face's Trainer prints 0.
  const bool none_left =
      loss.over == LossOver::kFinite && loss.value == 0 && loss.norm_is_nonfinite;
  return none_left || !std::isfinite(loss.value) || loss.nonfinite.value_or(0) > 0;
}

std::optional<PrintedLoss> RecognizeLoss(std::string_view line) {
  const std::optional<PrintedLoss> loss = LossOfAnyRun(line);
  const auto is_there = [&](std::string_view start) { return HasWordBeginning(line, start); };
  if (loss && std::ranges::any_of(kOtherRuns, is_there)) return std::nullopt;
  return loss;
}

}  // namespace dlsim::sim
