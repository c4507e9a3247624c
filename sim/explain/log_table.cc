// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/log_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <numeric>
#include <string>
#include <utility>

#include "dlsim/error.h"
#include "sim/explain/guided_diffusion.h"
#include "sim/explain/log_text.h"

namespace dlsim::sim {
namespace {

using Names = std::initializer_list<std::string_view>;

constexpr std::array<std::string_view, 4> kLossColumns = {"loss", "train_loss", "lm loss",
                                                          "lm_loss"};

// Returns the one of comma, semicolon and tab that a header has most, outside of quotes.
char Separator(std::string_view header) {
  constexpr std::string_view kSeparators = ",;\t";
  std::array<size_t, kSeparators.size()> counts{};
  bool quoted = false;
  for (const char c : header) {
    if (c == '"') quoted = !quoted;
    const size_t found = quoted ? kSeparators.npos : kSeparators.find(c);
    if (found != kSeparators.npos) ++counts[found];
  }
  return kSeparators[static_cast<size_t>(std::ranges::max_element(counts) - counts.begin())];
}

// Returns the fields of a line of CSV; quotes as in RFC 4180. Between semicolons commas are
// decimal.
std::vector<std::string> Fields(std::string_view line, char separator) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += line[i++];
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && c == separator) {
      fields.emplace_back();
    } else if (c == ',' && separator == ';') {
      fields.back() += '.';
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  return fields;
}

std::string LowerCase(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  const size_t first = text.find_first_not_of(' ');
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

// A column's name alone, or after "run - " or "train/".
bool IsNamed(const std::string& column, std::string_view name) {
  if (!column.ends_with(name)) return false;
  const std::string_view before(column.data(), column.size() - name.size());
  return before.empty() || before.ends_with(' ') || before.ends_with('/');
}

std::optional<size_t> Find(const std::vector<std::string>& columns, Names names) {
  for (const std::string_view name : names) {
    for (size_t i = 0; i < columns.size(); ++i) {
      if (IsNamed(columns[i], name)) return i;
    }
  }
  return std::nullopt;
}

// One export of W&B has a column for each run of a plot.
void RequireOneRun(const std::vector<std::string>& columns, size_t chosen, Names names,
                   std::string_view place) {
  for (const std::string_view name : names) {
    if (!IsNamed(columns[chosen], name)) continue;
    for (size_t i = chosen + 1; i < columns.size(); ++i) {
      if (!IsNamed(columns[i], name)) continue;
      throw InputError(std::string(place), "the scales of several runs", "a file of one run",
                       Quoted(columns[chosen]) + " and " + Quoted(columns[i]));
    }
  }
}

// "run-NAME-tag-train_loss_scale.csv".
bool IsScaleTag(std::string_view path) {
  const std::string name = LowerCase(std::string(path.substr(path.rfind('/') + 1)));
  const size_t tag = std::min(name.rfind("tag-"), name.size());
  const std::string_view words = std::string_view(name).substr(tag == name.size() ? 0 : tag);
  if (words.find("lg_loss_scale") != words.npos) return false;
  return std::ranges::any_of(
      std::initializer_list<std::string_view>{"loss_scale", "loss-scale", "grad_scale",
                                              "grad-scale", "lossscale", "amp_scale"},
      [&](std::string_view known) { return words.find(known) != words.npos; });
}

struct Columns {
  size_t step = 0, scale = 0;
  std::optional<size_t> skipped, loss;
  bool bare_name = false, is_log2 = false;
};

std::optional<Columns> FindColumns(std::string_view header, std::string_view place) {
  std::vector<std::string> names = Fields(header, Separator(header));
  std::ranges::transform(names, names.begin(), LowerCase);
  const auto step = Find(names, {"step", "global_step", "_step", "iteration", "iter"});
  static const Names kScales = {"loss_scale", "loss-scale", "grad_scale", "scale", "lossscale"};
  auto scale = Find(names, kScales);
  // TensorBoard's download of one tag, whose name only the file has.
  const auto value = Find(names, {"value"});
  const bool is_tag = !scale && value && Find(names, {"wall time"});
  if (is_tag && IsScaleTag(place)) scale = value;
  const auto log2_scale = scale ? std::nullopt : Find(names, {kLog2ScaleName});
  if (log2_scale) scale = log2_scale;
  if (!step || !scale) return std::nullopt;
  RequireOneRun(names, *scale, kScales, place);
  const auto skipped = Find(names, {"skipped", "overflow", "found_inf"});
  const std::string& name = names[*scale];
  const bool names_it = std::ranges::any_of(
      kScales, [&](std::string_view known) { return known != "scale" && IsNamed(name, known); });
  // Not "train/loss", by which Hugging Face's Trainer and others name a mean.
  const auto loss = std::ranges::find_first_of(names, kLossColumns);
  std::optional<size_t> loss_column;
  if (loss != names.end()) loss_column = static_cast<size_t>(loss - names.begin());
  return Columns{*step,
                 *scale,
                 skipped,
                 loss_column,
                 !names_it && !skipped && !is_tag,
                 log2_scale.has_value()};
}

double Number(const std::string& text, std::string_view place, size_t line) {
  const std::optional<PrintedNumber> number = ReadWhole(text);
  if (number) return number->value;
  throw InputError(std::string(place) + ":" + std::to_string(line), "not a number",
                   "a number in each column", Quoted(text));
}

bool IsTrue(const std::string& text) {
  const std::string lower = LowerCase(text);
  return lower == "true" || (lower != "false" && !lower.empty() && lower != "0" && lower != "0.0");
}

}  // namespace

std::optional<std::vector<LogEvent>> ReadTable(std::string_view text, std::string_view place) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  const std::string_view header = text.substr(0, text.find('\n'));
  const auto columns = FindColumns(header, place);
  if (!columns) return std::nullopt;
  std::vector<LogEvent> events;
  size_t line = 1;
  for (size_t at = text.find('\n'); at != std::string_view::npos;) {
    const size_t end = text.find('\n', ++at);
    const std::vector<std::string> fields = Fields(text.substr(at, end - at), Separator(header));
    at = end;
    ++line;
    const auto field = [&](size_t i) { return i < fields.size() ? fields[i] : std::string(); };
    const std::string scale = field(columns->scale);
    if (LowerCase(field(columns->step)).empty() || LowerCase(scale).empty()) continue;
    LogEvent event = {.stack = LogStack::kTable, .kind = LogEvent::Kind::kSteps, .line = line};
    const double step = Number(LowerCase(field(columns->step)), place, line);
    if (!(std::fabs(step) < 0x1p53)) {
      throw InputError(std::string(place) + ":" + std::to_string(line), "not a step", "an integer",
                       Quoted(field(columns->step)));
    }
    event.number = static_cast<int64_t>(step);
    Number(LowerCase(scale), place, line);
    event.used = ReadWhole(LowerCase(scale));
    if (columns->loss) {
      if (const auto loss = ReadWhole(LowerCase(field(*columns->loss)))) event.loss = loss->value;
    }
    if (columns->is_log2) {
      if (std::optional<LogEvent> record = GuidedRecord(*event.number, *event.used)) {
        record->line = line;
        record->loss = event.loss;
        events.push_back(std::move(*record));
      }
      continue;
    }
    event.bare_name = columns->bare_name;
    if (columns->skipped) event.overflow = IsTrue(field(*columns->skipped));
    events.push_back(std::move(event));
  }
  return events;
}

bool CountsSamples(std::string_view path) {
  return path.substr(path.rfind('/') + 1).find("Train_Samples_") != std::string_view::npos;
}

void DivideBySamples(std::vector<LogEvent>& events) {
  int64_t unit = 0;
  for (const LogEvent& event : events) unit = std::gcd(unit, event.number.value_or(0));
  if (unit < 2) return;
  for (LogEvent& event : events) *event.number /= unit;
}

}  // namespace dlsim::sim
