// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/read_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "dlsim/error.h"
#include "sim/base/caller.h"
#include "sim/base/text_input.h"
#include "sim/explain/guided_diffusion.h"
#include "sim/explain/line_words.h"
#include "sim/explain/log_averages.h"
#include "sim/explain/log_json.h"
#include "sim/explain/log_start.h"
#include "sim/explain/log_table.h"
#include "sim/explain/log_text.h"
#include "sim/explain/one_voice.h"
#include "src/base/parallel.h"

namespace dlsim::sim {
namespace {

using Kind = LogEvent::Kind;

constexpr uint64_t kMaxLogBytes = uint64_t{1} << 30;

// Of a log that one thread reads at a time.
constexpr size_t kPartBytes = size_t{1} << 20;

std::string ReadText(const std::string& path) {
  if (const auto given = CurrentCaller().GivenLog(path)) return std::string(*given);
  if (path.find("tfevents") != path.npos) {
    throw InputError(Printable(path), "a log of TensorBoard",
                     "dlsim.explain() of the Python package, which reads it");
  }
  return ReadTextInput(path, kMaxLogBytes);
}

// Calls visit(line, number) for lines that end in LF or CR: a progress bar redraws itself by CR.
// Numbers count LFs. Returns how many there are.
template <class Visit>
size_t VisitLines(std::string_view text, const Visit& visit) {
  size_t number = 0;
  for (size_t at = 0; at < text.size();) {
    CurrentCaller().CheckCanceled();
    const size_t end = std::min(text.find('\n', at), text.size());
    for (std::string_view rest = text.substr(at, end - at); !rest.empty();) {
      const size_t length = std::min(rest.find('\r'), rest.size());
      if (length > 0) visit(rest.substr(0, length), number);
      rest.remove_prefix(std::min(length + 1, rest.size()));
    }
    if (end < text.size()) ++number;
    at = end + 1;
  }
  return number;
}

// Lines of a log, and what they say. `table` is the one that they begin in, then end in.
struct Part {
  std::string_view text = {};
  GuidedTable table = {};
  size_t line_ends = 0;
  std::vector<LogEvent> events = {};  // their lines, and those of losses, count from 0
  std::vector<PrintedLoss> losses = {};
};

void ReadLine(std::string_view raw, size_t number, Part& part) {
  const LineWords words = FindLineWords(raw);
  if (!words.scale && !words.loss) return;
  std::string stripped;
  const std::string_view line = StripTerminalCodes(raw, stripped);
  if (std::optional<PrintedLoss> loss = RecognizeLoss(line)) {
    loss->line = number;
    part.losses.push_back(*loss);
  }
  if (!words.scale) return;
  std::optional<LogEvent> event = part.table.Add(line);
  if (!event) event = RecognizeMessage(line);
  if (!event && PrintsSettings(line)) return;
  if (!event) event = RecognizeJson(line);
  if (!event) event = RecognizeKeyValue(line);
  if (!event || event->kind == Kind::kIgnored) return;
  event->line = number;
  part.events.push_back(std::move(*event));
}

void ReadPart(Part& part) {
  part.line_ends = VisitLines(
      part.text, [&](std::string_view line, size_t number) { ReadLine(line, number, part); });
}

std::vector<Part> CutIntoParts(std::string_view text) {
  std::vector<Part> parts;
  while (!text.empty()) {
    const size_t end = text.find('\n', kPartBytes);
    parts.push_back({.text = text.substr(0, end == text.npos ? end : end + 1)});
    text.remove_prefix(parts.back().text.size());
  }
  return parts;
}

// Reads lines on all threads; `lines` is the number of the first, then of the one after the last.
void ReadLines(std::string_view text, size_t& lines, LogEvents& log) {
  std::vector<Part> parts = CutIntoParts(text);
  ParallelFor(
      parts.size(), [&](size_t i) { ReadPart(parts[i]); }, text.size());
  size_t events = log.events.size(), losses = log.losses.printed.size();
  GuidedTable table;
  for (Part& part : parts) {
    if (table.IsOpen()) {
      part = {.text = part.text, .table = table};
      ReadPart(part);
    }
    table = part.table;
    events += part.events.size();
    losses += part.losses.size();
  }
  log.events.reserve(events);
  log.losses.printed.reserve(losses);
  for (Part& part : parts) {
    for (LogEvent& event : part.events) {
      event.line += lines;
      log.events.push_back(std::move(event));
    }
    for (PrintedLoss& loss : part.losses) {
      loss.line += lines;
      log.losses.printed.push_back(loss);
    }
    lines += part.line_ends;
    part = {};
  }
}

// The losses in the rows of a table, or in the entries of a JSON.
void AddLosses(std::span<const LogEvent> events, std::vector<PrintedLoss>& losses) {
  for (const LogEvent& event : events) {
    if (!event.loss) continue;
    LossOver over = LossOver::kStep;
    if (event.stack == LogStack::kTrainerState) over = LossOver::kFinite;
    if (event.stack == LogStack::kGuidedDiffusion) over = LossOver::kSteps;
    const bool bad_norm = over == LossOver::kFinite && event.overflow.value_or(false);
    losses.push_back({.line = event.line,
                      .value = *event.loss,
                      .over = over,
                      .step = event.number,
                      .norm_is_nonfinite = bad_norm});
  }
}

// Lines that name a step and a scale are left out where those of a stack say the same, and
// where messages give scales, those whose scale may be another one.
void PreferMessages(std::vector<LogEvent>& events) {
  const auto is_record = [](const LogEvent& e) { return !e.key_value && IsRecord(e); };
  const auto states = [](const LogEvent& e) { return !e.key_value && (e.used || e.next); };
  const bool has_records = std::ranges::any_of(events, is_record);
  const bool has_messages = std::ranges::any_of(events, states);
  std::erase_if(events, [&](const LogEvent& e) {
    return e.key_value && (has_records || (has_messages && e.bare_name));
  });
}

// Reads one file as what it is; what it states joins `all`.
void ReadFile(const std::string& path, size_t& lines, LogEvents& log) {
  const std::string text = ReadText(path);
  std::optional<std::vector<LogEvent>> events = ReadTrainerState(text);
  if (!events) events = ReadTable(text, Printable(InputName(path)));
  if (events) {
    if (CountsSamples(path)) DivideBySamples(*events);
    for (LogEvent& event : *events) event.line += lines - 1;
    AddLosses(*events, log.losses.printed);
    log.events.insert(log.events.end(), events->begin(), events->end());
    lines += static_cast<size_t>(std::ranges::count(text, '\n'));
    return;
  }
  ReadLines(text, lines, log);
}

}  // namespace

LogEvents ReadLogs(std::span<const std::string> paths) {
  LogEvents log;
  size_t lines = 1;
  for (const std::string& path : paths) ReadFile(path, lines, log);
  PreferMessages(log.events);
  DropOtherScales(log);
  KeepOneVoice(log);
  ReadAverages(log);
  log.losses.scale_may_be_next = std::ranges::any_of(log.events, [](const LogEvent& event) {
    return IsRecord(event) && event.used && !event.overflow;
  });
  const auto has_scale = [](const LogEvent& event) { return event.used || event.next; };
  if (std::ranges::any_of(log.events, has_scale)) return log;
  const auto fails = [](const PrintedLoss& loss) {
    return IsNonfinite(loss) || loss.norm_is_nonfinite;
  };
  if (std::ranges::none_of(log.losses.printed, fails)) RefuseWithoutScale(paths);
  return {.losses = std::move(log.losses)};
}

void RefuseWithoutScale(std::span<const std::string> paths) {
  throw InputError(Printable(InputName(paths.front())), "no loss scale found",
                   "lines or CSV columns with a step and a scale, or a log of DeepSpeed, Apex, "
                   "Megatron-LM or another stack of docs/explain.md");
}

}  // namespace dlsim::sim
