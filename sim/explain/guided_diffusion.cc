// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/guided_diffusion.h"

#include <algorithm>
#include <cmath>

#include "sim/explain/log_text.h"
#include "sim/explain/read_log.h"

namespace dlsim::sim {
namespace {

using Kind = LogEvent::Kind;

constexpr double kMostLog2 = 1000;

PrintedNumber ScaleOf(double low, double high) {
  const double value = std::exp2((low + high) / 2), slack = value * 1e-9;
  return {value, std::exp2(low) - slack, std::exp2(high) + slack};
}

bool IsMean(const LogEvent& event) {
  return event.stack == LogStack::kGuidedDiffusion && event.mean && event.next;
}

// Returns the number in "name | number |".
std::optional<PrintedNumber> CellOf(std::string_view row) {
  const size_t start = row.find_first_not_of(' ', row.find('|') + 1);
  return start == row.npos ? std::nullopt : ReadPrinted(row.substr(start));
}

}  // namespace

// fp16_util.py: the scale has fallen by 1, and grows by 0.001 at each step that is applied.
std::optional<LogEvent> GuidedDiffusion(std::string_view line) {
  const auto log2_scale = NumberAfter(line, "Found NaN, decreased lg_loss_scale to");
  if (!log2_scale || !(std::fabs(log2_scale->value) < kMostLog2)) return std::nullopt;
  const double exponent = (log2_scale->low + log2_scale->high) / 2;
  LogEvent event = {.stack = LogStack::kGuidedDiffusion, .kind = Kind::kOverflow};
  event.next = ScaleOf(exponent, exponent);
  event.used = ScaleOf(exponent + 1, exponent + 1);
  return event;
}

// logger.py, logkv_mean.
std::optional<LogEvent> GuidedRecord(int64_t step, const PrintedNumber& log2_scale) {
  if (!(std::fabs(log2_scale.value) < kMostLog2)) return std::nullopt;
  LogEvent event = {.stack = LogStack::kGuidedDiffusion, .kind = Kind::kSteps};
  event.number = step;
  event.next = ScaleOf(log2_scale.low, log2_scale.high);
  event.mean = true;
  return event;
}

// logger.py, HumanOutputFormat: rows in the order of the alphabet.
std::optional<LogEvent> GuidedTable::Add(std::string_view line) {
  const size_t name = line.find_first_not_of(" |");
  if (name == line.npos || line.find('|') > name) return std::nullopt;
  const std::string_view row = line.substr(name);
  if (row.starts_with(kLog2ScaleName)) {
    log2_scale_ = CellOf(row);
    return std::nullopt;
  }
  if (!log2_scale_ || !row.starts_with("step ")) return std::nullopt;
  const auto step = CellOf(row);
  const PrintedNumber log2_scale = *log2_scale_;
  log2_scale_.reset();
  if (!step || !(std::fabs(step->value) < 0x1p53)) return std::nullopt;
  return GuidedRecord(static_cast<int64_t>(step->value), log2_scale);
}

void ReadGuidedMeans(LogEvents& log) {
  if (std::ranges::none_of(log.events, IsMean)) return;
  const auto is_message = [](const LogEvent& e) {
    return e.stack == LogStack::kGuidedDiffusion && e.kind == Kind::kOverflow;
  };
  if (std::ranges::any_of(log.events, is_message)) {
    std::erase_if(log.events, IsMean);
    log.notes.push_back(
        "tables of lg_loss_scale are means over steps and are ignored: messages report each "
        "overflow");
    return;
  }
  std::optional<double> level;  // where the scale is, as far as the falls are counted
  int64_t last = -1;
  for (LogEvent& event : log.events) {
    if (!IsMean(event)) continue;
    const double log2_scale = std::log2(event.next->value);
    level = std::max(level.value_or(log2_scale), log2_scale);
    const auto steps = static_cast<double>(std::max<int64_t>(*event.number - last, 0));
    const double falls = std::min(std::round(*level - log2_scale), steps);
    last = *event.number;
    *level -= falls;
    event.skipped = static_cast<int64_t>(falls);
    event.counts_falls = true;
    event.mean = false;
  }
  log.bounds_nothing = true;
  log.notes.push_back(
      "lg_loss_scale is a mean over the steps since the line before: overflows are counted by its "
      "falls");
}

}  // namespace dlsim::sim
