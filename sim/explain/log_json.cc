// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/log_json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "sim/base/json_value.h"
#include "sim/explain/guided_diffusion.h"
#include "sim/explain/log_text.h"

namespace dlsim::sim {
namespace {

constexpr std::array<std::string_view, 5> kScaleKeys = {"loss_scale", "grad_scale",
                                                        "train/loss_scale", "amp_scale", "scale"};
constexpr std::array<std::string_view, 4> kStepKeys = {"step", "global_step", "iteration", "iter"};

// Python writes NaN, Infinity and -Infinity, which are no JSON.
std::string QuoteNonfinite(std::string_view text) {
  std::string quoted;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\' && i + 1 < text.size()) {
      quoted += text[i++];
    } else if (text[i] == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      std::string_view word;
      for (const std::string_view known : {"NaN", "-Infinity", "Infinity"}) {
        if (text.substr(i).starts_with(known)) word = known;
      }
      if (!word.empty()) {
        quoted.append("\"").append(word).append("\"");
        i += word.size() - 1;
        continue;
      }
    }
    quoted += text[i];
  }
  return quoted;
}

// Levels that hold no field of a record are left out: nlohmann copies a document by recursion, and
// who writes a log may nest as deep as the stack does not go.
Json ParseLenient(std::string_view text) {
  constexpr int kMostLevels = 8;
  const auto is_shallow = [](int depth, Json::parse_event_t, Json&) {
    return depth <= kMostLevels;
  };
  return Json::parse(QuoteNonfinite(text), is_shallow, /*allow_exceptions=*/false);
}

// Numbers may be text, as fairseq writes them.
template <class Keys>
std::optional<PrintedNumber> Field(const Json& object, const Keys& keys) {
  for (const std::string_view key : keys) {
    const auto found = object.find(key);
    if (found == object.end()) continue;
    if (found->is_number()) {
      const double value = found->template get<double>();
      PrintedNumber number = {value, value, value};
      AddFloat32(number);
      return number;
    }
    if (found->is_string()) return ReadWhole(found->template get_ref<const std::string&>());
  }
  return std::nullopt;
}

std::optional<LogEvent> EventOf(const Json& object, LogStack stack) {
  LogEvent event = {.stack = stack, .kind = LogEvent::Kind::kSteps};
  const auto step = Field(object, kStepKeys);
  event.used = Field(object, kScaleKeys);
  event.bare_name = !Field(object, std::span(kScaleKeys).first(kScaleKeys.size() - 1));
  if (!step || !(std::fabs(step->value) < 0x1p53)) return std::nullopt;
  event.number = static_cast<int64_t>(step->value);
  const auto log2_scale = Field(object, std::array{kLog2ScaleName});
  if (log2_scale && !event.used) return GuidedRecord(*event.number, *log2_scale);
  const auto norm = Field(object, std::array<std::string_view, 1>{"grad_norm"});
  if (norm) event.overflow = !std::isfinite(norm->value);
  const auto loss = Field(object, std::array<std::string_view, 1>{"loss"});
  if (loss) event.loss = loss->value;
  for (const std::string_view key : {"skipped", "overflow", "found_inf"}) {
    const auto found = object.find(key);
    if (found != object.end() && found->is_boolean()) event.overflow = found->get<bool>();
    if (found != object.end() && found->is_number()) event.overflow = found->get<double>() != 0;
    if (found != object.end()) event.bare_name = false;
  }
  return event;
}

}  // namespace

std::optional<LogEvent> RecognizeJson(std::string_view line) {
  const size_t start = line.find('{');
  if (start == std::string_view::npos || line.find("scale", start) == std::string_view::npos) {
    return std::nullopt;
  }
  const size_t end = line.rfind('}');
  if (end == std::string_view::npos || end < start) return std::nullopt;
  const Json object = ParseLenient(line.substr(start, end - start + 1));
  if (!object.is_object()) return std::nullopt;
  const auto updates = Field(object, std::array<std::string_view, 1>{"num_updates"});
  if (!updates) {
    std::optional<LogEvent> event = EventOf(object, LogStack::kKeyValue);
    if (event && event->stack == LogStack::kGuidedDiffusion) return event;
    if (!event || !event->used) return std::nullopt;
    event->key_value = true;
    event->wording = kKeyValueWording;
    return event;
  }
  LogEvent event = {.stack = LogStack::kFairseq, .kind = LogEvent::Kind::kUpdates};
  if (object.contains("scale_window")) event.stack = LogStack::kMetaseq;
  if (!(std::fabs(updates->value) < 0x1p53)) return std::nullopt;
  event.number = static_cast<int64_t>(updates->value);
  event.next = Field(object, kScaleKeys);
  if (!event.next) return std::nullopt;
  return event;
}

std::optional<std::vector<LogEvent>> ReadTrainerState(std::string_view text) {
  if (text.find("\"log_history\"") == std::string_view::npos) return std::nullopt;
  const Json document = ParseLenient(text);
  if (!document.is_object() || !document.contains("log_history")) return std::nullopt;
  std::vector<LogEvent> events;
  for (const Json& entry : document["log_history"]) {
    if (!entry.is_object()) continue;
    std::optional<LogEvent> event = EventOf(entry, LogStack::kTrainerState);
    if (event) events.push_back(*event);
  }
  // Entries without a scale count only where none has one, for their losses.
  if (std::ranges::any_of(events, [](const LogEvent& event) { return event.used.has_value(); })) {
    std::erase_if(events, [](const LogEvent& event) {
      return !event.used && !event.overflow.value_or(false);
    });
  }
  return events;
}

}  // namespace dlsim::sim
