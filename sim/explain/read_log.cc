// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/read_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "dlsim/error.h"
#include "sim/base/text_input.h"
#include "sim/explain/log_json.h"
#include "sim/explain/log_table.h"
#include "sim/explain/log_text.h"
#include "sim/explain/one_voice.h"

namespace dlsim::sim {
namespace {

using Kind = LogEvent::Kind;

constexpr uint64_t kMaxLogBytes = uint64_t{1} << 30;

std::string ReadText(const std::string& path) {
  if (path.find("tfevents") != path.npos) {
    throw InputError(Printable(path), "a log of TensorBoard",
                     "dlsim.explain() of the Python package, which reads it");
  }
  return ReadTextInput(path, kMaxLogBytes);
}

// What one line says in each way of reading it, until the whole log has told which holds.
struct Readings {
  std::vector<LogEvent> messages;    // of a stack
  std::vector<LogEvent> key_values;  // of lines that name a step and a scale
};

// Calls visit(line, number) for lines that end in LF or CR: a progress bar redraws itself by CR.
template <class Visit>
size_t VisitLines(std::string_view text, size_t first_number, const Visit& visit) {
  size_t number = first_number;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of("\r\n", at), text.size());
    if (end > at) visit(text.substr(at, end - at), number);
    if (end < text.size() && text[end] == '\n') ++number;
    at = end + 1;
  }
  return number;
}

// Only lines with one of these words can say anything.
bool MayTell(std::string_view line) {
  for (const std::string_view word :
       {"scale", "overflow", "skipped", "Scale", "Overflow", "SCALE"}) {
    if (line.find(word) != std::string_view::npos) return true;
  }
  return false;
}

void ReadLine(std::string_view raw, size_t number, Readings& readings) {
  if (!MayTell(raw)) return;
  const std::string line = StripTerminalCodes(raw);
  std::optional<LogEvent> event = RecogniseMessage(line);
  bool of_stack = event.has_value();
  if (!event) {
    event = RecogniseJson(line);
    of_stack = event && event->stack != LogStack::kKeyValue;
  }
  if (!event) event = RecogniseKeyValue(line);
  if (!event || event->kind == Kind::kIgnored) return;
  event->line = number;
  (of_stack ? readings.messages : readings.key_values).push_back(std::move(*event));
}

// Versions of fairseq print the mean of the scale over the last updates: no power of two times the
// scales that its messages name. Where all are means, no line ties a scale to a number of updates.
void DropMeans(LogEvents& log) {
  const auto named = std::ranges::find_if(log.events, [](const LogEvent& event) {
    return event.stack == LogStack::kFairseq && event.kind == Kind::kOverflow && event.next;
  });
  if (named == log.events.end() || named->next->value <= 0) return;
  const double unit = named->next->value;
  int64_t means = 0, scales = 0;
  for (LogEvent& event : log.events) {
    if (event.kind != Kind::kUpdates || !event.next) continue;
    const double power = std::exp2(std::round(std::log2(event.next->value / unit)));
    const bool is_scale = event.next->Holds(power * unit);
    if (!is_scale) event.next.reset();
    ++(is_scale ? scales : means);
  }
  if (means == 0) return;
  if (scales == 0) {
    std::erase_if(log.events, [](const LogEvent& e) { return e.kind == Kind::kUpdates; });
  }
  const bool one = means == 1;
  log.notes.push_back(fmt::format("{} of loss_scale {} over updates, and {} left out",
                                  one ? "one value" : fmt::format("{} values", means),
                                  one ? "is a mean" : "are means", one ? "is" : "are"));
}

// Reads one file as what it is; text joins `readings`.
void ReadFile(const std::string& path, size_t& lines, Readings& readings) {
  const std::string text = ReadText(path);
  std::optional<std::vector<LogEvent>> events = ReadTrainerState(text);
  if (!events) events = ReadTable(text, Printable(InputName(path)));
  if (events) {
    if (CountsSamples(path)) DivideBySamples(*events);
    for (LogEvent& event : *events) event.line += lines - 1;
    readings.messages.insert(readings.messages.end(), events->begin(), events->end());
    lines += static_cast<size_t>(std::ranges::count(text, '\n'));
    return;
  }
  lines = VisitLines(
      text, lines, [&](std::string_view line, size_t number) { ReadLine(line, number, readings); });
}

}  // namespace

LogEvents ReadLogs(std::span<const std::string> paths) {
  Readings readings;
  size_t lines = 1;
  for (const std::string& path : paths) ReadFile(path, lines, readings);
  LogEvents log;
  const bool plain = readings.messages.empty();
  log.events = plain ? std::move(readings.key_values) : std::move(readings.messages);
  DropOtherScales(log);
  KeepOneVoice(log);
  DropMeans(log);
  const auto has_scale = [](const LogEvent& event) { return event.used || event.next; };
  if (std::ranges::any_of(log.events, has_scale)) return log;
  throw InputError(
      Printable(InputName(paths.front())), "no loss scale found",
      "messages of DeepSpeed, Apex, Megatron-LM, fairseq, metaseq, MXNet, Paddle, ColossalAI, "
      "MindFormers or Swin Transformer, a trainer_state.json with a scale, a CSV with columns step "
      "and scale, or lines "
      "with both");
}

}  // namespace dlsim::sim
