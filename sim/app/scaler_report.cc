// SPDX-License-Identifier: Apache-2.0
#include "sim/app/scaler_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "dlsim/sim/policies.h"
#include "sim/base/number.h"
#include "sim/base/quantity.h"
#include "sim/base/table.h"
#include "sim/base/wrap.h"

namespace dlsim::sim {
namespace {

constexpr size_t kShownChanges = 20;
constexpr size_t kShownEvents = 10;

// One width for all policies, so that the columns line up across the list.
size_t WidestOf(std::string_view ParameterInfo::*column) {
  size_t width = 0;
  for (const PolicyInfo& policy : Policies()) {
    for (const ParameterInfo& parameter : policy.parameters) {
      width = std::max(width, (parameter.*column).size());
    }
  }
  return width;
}

// The scale's path as one row per change.
std::string PathTable(const ScalerRun& run) {
  std::vector<TableRow> rows = {{"after step", "scale", "steps"}};
  int64_t step = 0;
  for (size_t i = 0; i < run.scale.size() && i < kShownChanges; ++i) {
    rows.push_back(
        {std::to_string(step), ScaleText(run.scale[i].scale), std::to_string(run.scale[i].count)});
    step += run.scale[i].count;
  }
  std::string text = FormatTable(rows);
  if (run.scale.size() > kShownChanges) {
    text += fmt::format("  ... and {} more; --json has all\n", run.scale.size() - kShownChanges);
  }
  return text;
}

// The words of `dlsim scaler --list` for it.
std::string_view TextOf(CheckpointContent content) {
  switch (content) {
    case CheckpointContent::kFull:
      return "its whole state";
    case CheckpointContent::kScaleOnly:
      return "the scale only";
    case CheckpointContent::kNothing:
      return "nothing";
  }
  return "";
}

}  // namespace

std::string ListPolicies() {
  const size_t name_width = WidestOf(&ParameterInfo::name);
  const size_t default_width = WidestOf(&ParameterInfo::default_text);
  const size_t columns = OutputColumns();
  std::string text;
  for (const PolicyInfo& policy : Policies()) {
    text += fmt::format("{}{}{}\n", policy.name, policy.aliases.empty() ? "" : ", also ",
                        fmt::join(policy.aliases, ", "));
    text += Wrap(fmt::format("  {}", policy.summary), columns);
    text += Wrap(fmt::format("  finite test: {}; clipping: {}; a checkpoint keeps {}",
                             NameOf(policy.rules.finite_test), NameOf(policy.rules.clip_rule),
                             TextOf(policy.checkpoint)),
                 columns);
    for (const ParameterInfo& parameter : policy.parameters) {
      const std::string head = fmt::format("    {:<{}}  {:<{}}", parameter.name, name_width,
                                           parameter.default_text, default_width);
      const bool fits = head.size() + 2 + parameter.help.size() <= columns;
      text += fits ? fmt::format("{}  {}\n", head, parameter.help)
                   : fmt::format("    {}  {}\n", parameter.name, parameter.default_text) +
                         Wrap(fmt::format("        {}", parameter.help), columns);
    }
  }
  return text;
}

std::string FormatRun(const std::string& policy, const ScalerRun& run,
                      const std::vector<std::string>& notes) {
  std::string text = fmt::format("policy: {}\n", policy);
  for (const std::string& note : notes) text += "note: " + note + "\n";
  text += fmt::format("steps: {}, skipped: {}, initial scale: {}\n\n", run.steps_run,
                      run.skipped.size(), ScaleText(run.scale_init.value_or(0)));
  text += PathTable(run);
  for (size_t i = 0; i < run.events.size() && i < kShownEvents; ++i) {
    const ScalerEvent& event = run.events[i];
    text += fmt::format("  step {}: {}: {}\n", event.step, event.type, event.message);
  }
  if (run.event_count > kShownEvents) {
    text += fmt::format("  ... and {}\n", Counted(run.event_count - kShownEvents, "more event"));
  }
  return text;
}

std::string DescribeTwins(int64_t at_step, const ScalerRun& whole,
                          const std::vector<ScalerTwin>& twins) {
  std::vector<TableRow> rows = {
      {"checkpoint keeps", "differs from step", "skipped", "final scale"}};
  const auto add = [&](Kept kept, const std::string& differs, const ScalerRun& run) {
    const double scale = run.scale.empty() ? run.scale_init.value_or(0) : run.scale.back().scale;
    rows.push_back(
        {std::string(NameOf(kept)), differs, std::to_string(run.skipped.size()), ScaleText(scale)});
  };
  add(Kept::kAll, "never", whole);
  for (const ScalerTwin& twin : twins) {
    add(twin.kept, twin.first_difference ? std::to_string(*twin.first_difference) : "never",
        twin.run);
  }
  return fmt::format("\n  if interrupted before step {} and resumed:\n", at_step) +
         FormatTable(rows);
}

}  // namespace dlsim::sim
