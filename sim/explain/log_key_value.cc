// SPDX-License-Identifier: Apache-2.0
// Lines that name a step and a scale in the wording of no stack: "step: 5 loss_scale=1024".
#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>

#include "sim/base/word_character.h"
#include "sim/explain/log_event.h"
#include "sim/explain/log_text.h"

namespace dlsim::sim {
namespace {

// Names of a scale and of a step, the clearest first.
constexpr std::array<std::string_view, 8> kScaleNames = {"loss_scale", "grad_scale", "loss scale",
                                                         "grad scale", "Grad Scale", "lossscale",
                                                         "amp_scale",  "scale"};
constexpr std::array<std::string_view, 10> kStepNames = {
    "global_step", "global step", "Global Step", "step", "Step",
    "iteration",   "Iteration",   "iter",        "Iter", "batch"};

template <class Names>
std::optional<PrintedNumber> FirstNumber(std::string_view line, const Names& names) {
  for (const std::string_view name : names) {
    if (const auto number = NumberAfter(line, name)) return number;
  }
  return std::nullopt;
}

// Words before "_scale" that leave it a loss scale, unlike those of min_loss_scale or logit_scale.
bool IsScaleName(std::string_view name) {
  static constexpr std::array<std::string_view, 12> kWords = {
      "train", "training", "model", "opt",  "optim", "optimizer",
      "amp",   "fp16",     "grad",  "loss", "cur",   "current"};
  if (!name.ends_with("_scale")) return false;
  name.remove_suffix(std::string_view("_scale").size());
  while (!name.empty()) {
    const std::string_view word = name.substr(0, name.find('_'));
    if (std::ranges::find(kWords, word) == kWords.end()) return false;
    name.remove_prefix(std::min(name.size(), word.size() + 1));
  }
  return true;
}

// Whether a word before "loss scale" makes it another one: "kl loss scale: 0.5".
bool IsScaleOfAnother(std::string_view line) {
  const size_t at = line.find("loss scale");
  if (at == line.npos || at < 2 || line[at - 1] != ' ' || !IsWordCharacter(line[at - 2])) {
    return false;
  }
  size_t start = at - 1;
  while (start > 0 && IsWordCharacter(line[start - 1])) --start;
  const std::string word = std::string(line.substr(start, at - 1 - start)) + "_loss_scale";
  return word != "new_loss_scale" && word != "dynamic_loss_scale" && !IsScaleName(word);
}

// "train_scale=65536.0", "model_opt_grad_scale: 1024".
std::optional<PrintedNumber> PrefixedScale(std::string_view line, bool& bare_name) {
  for (size_t at = line.find("_scale"); at != line.npos; at = line.find("_scale", at + 1)) {
    size_t start = at;
    while (start > 0 && IsWordCharacter(line[start - 1])) --start;
    const std::string_view name = line.substr(start, at - start + 6);
    if (!IsScaleName(name)) continue;
    const auto number = NumberAfter(line.substr(start), name);
    if (!number) continue;
    bare_name = !name.ends_with("loss_scale") && !name.ends_with("grad_scale");
    return number;
  }
  return std::nullopt;
}

// clu, metric_writers/logging_writer.py: "[100] steps_per_second=5.1, train_loss=6.9".
std::optional<PrintedNumber> StepInBrackets(std::string_view line) {
  const size_t open = line.rfind('[', line.find('='));
  if (open == line.npos) return std::nullopt;
  const size_t close = line.find(']', open);
  const std::string_view digits = line.substr(open + 1, close - open - 1);
  if (close == line.npos || digits.empty() ||
      digits.find_first_not_of("0123456789") != digits.npos) {
    return std::nullopt;
  }
  const size_t equals = line.find('=', close);
  if (equals == line.npos || line.substr(close, 2) != "] ") return std::nullopt;
  const std::string_view name = line.substr(close + 2, equals - close - 2);
  if (name.empty() || name.find(' ') != name.npos) return std::nullopt;
  return ReadPrinted(digits);
}

// 500, or 500.0 as Lightning prints what it logs; 1.5e+03 is rounded.
bool IsCountOfSteps(const PrintedNumber& number) {
  return number.value == std::trunc(number.value) && std::fabs(number.value) < 0x1p53 &&
         number.high - number.low <= 0.1 + 1e-9;
}

}  // namespace

bool PrintsSettings(std::string_view line) {
  static constexpr std::array<std::string_view, 6> kSettings = {
      "loss_scale_window", "initial_scale_power",   "initial_loss_scale",
      "min_loss_scale",    "initial_dynamic_scale", "Namespace("};
  return std::ranges::any_of(kSettings, [&](std::string_view name) { return Has(line, name); });
}

std::optional<int64_t> StepNumber(std::string_view line) {
  auto step = FirstNumber(line, kStepNames);
  if (!step) step = StepInBrackets(line);
  if (!step || !IsCountOfSteps(*step)) return std::nullopt;
  return static_cast<int64_t>(step->value);
}

std::optional<LogEvent> RecognizeKeyValue(std::string_view line) {
  auto scale = FirstNumber(line, kScaleNames);
  bool bare_name = !FirstNumber(line, std::span(kScaleNames).first(kScaleNames.size() - 1));
  if (!scale) scale = PrefixedScale(line, bare_name);
  bare_name = bare_name || IsScaleOfAnother(line);
  const auto step = StepNumber(line);
  if (!scale || !step) return std::nullopt;
  LogEvent event = {.stack = LogStack::kKeyValue, .kind = LogEvent::Kind::kSteps};
  event.number = step;
  event.epoch = IntegerAfter(line, "epoch");
  if (!event.epoch) event.epoch = IntegerAfter(line, "Epoch");
  event.used = scale;
  event.wording = kKeyValueWording;
  event.key_value = true;
  event.bare_name = bare_name;
  return event;
}

}  // namespace dlsim::sim
