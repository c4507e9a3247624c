// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "dlsim/error.h"
#include "sim/base/quantity.h"
#include "sim/base/table.h"
#include "sim/base/wrap.h"
#include "sim/policies/policy_settings.h"
#include "sim/replay/report_run.h"

namespace dlsim::sim {
namespace {

std::string Range(const SourceFacts& facts) {
  const std::string first = std::to_string(facts.first_step);
  return facts.steps == 1 ? first : first + " to " + std::to_string(facts.last_step);
}

std::string DescribeParameters(const SimulationRun& run) {
  std::string text;
  for (const NamedValue& parameter : run.parameters) {
    const std::string value = std::visit(
        [&](const auto& v) {
          if constexpr (std::is_same_v<std::decay_t<decltype(v)>, double>) {
            return ParameterText(parameter.name, v);
          } else {
            return ParameterText(parameter.name, fmt::format("{}", v));
          }
        },
        parameter.value);
    text += (text.empty() ? "" : ", ") + parameter.name + " " + value;
  }
  return text;
}

// Each policy once, with its parameters and notes.
std::string DescribePolicies(std::span<const SimulationRun> runs) {
  std::vector<std::string> seen;
  for (const SimulationRun& run : runs) {
    if (run.resume || !run.start) continue;
    const std::string owner = run.config.empty() ? "" : run.config + ": ";
    std::string lines = "policy: " + owner + run.policy + " (" + DescribeParameters(run) + ")\n";
    for (const std::string& note : run.notes) lines += "note: " + note + "\n";
    if (std::ranges::count(seen, lines) == 0) seen.push_back(lines);
  }
  return fmt::format("{}", fmt::join(seen, ""));
}

// Each note of a policy that the original would have ended or that raised something, once, whatever
// formats it runs with; the others are details.
std::string NotesOfPolicies(std::span<const SimulationRun> runs) {
  std::vector<std::string> seen;
  for (const SimulationRun& run : runs) {
    if (run.resume || !run.start || run.result.events.empty()) continue;
    for (const std::string& note : run.notes) {
      std::string line = "note: " + run.policy + ": " + note + "\n";
      if (std::ranges::count(seen, line) == 0) seen.push_back(std::move(line));
    }
  }
  return fmt::format("{}", fmt::join(seen, ""));
}

// Other measures of what is lost are details.
TableRow OverviewRow(const SimulationRun& run, bool details) {
  const ReplaySummary& summary = run.result.summary;
  const TensorStats& g = summary.gradients;
  const bool applied = summary.steps > summary.skipped_steps;
  TableRow row = {
      RunLabel(run),
      fmt::format("{}/{}", summary.skipped_steps, summary.steps),
      std::to_string(summary.nonfinite_steps),
      summary.first_applied_step ? std::to_string(*summary.first_applied_step) : "never",
      ScaleText(summary.final_scale),
      ScaleText(summary.min_scale) + ".." + ScaleText(summary.max_scale),
      applied ? Percent(summary.tensor_harm.mean()) : "-",
      applied ? Percent(summary.tensor_harm.worst) : "-",
      std::to_string(g.overflow),
      std::to_string(g.nonfinite())};
  if (!details) return row;
  row.push_back(Percent(g.underflow_fraction()));
  row.push_back(Percent(summary.worst_step_energy_lost));
  return row;
}

// The runs that the original software would have ended.
std::string Stopped(std::span<const SimulationRun> runs) {
  std::string text;
  for (const SimulationRun& run : runs) {
    if (!run.result.stopped_at || run.resume) continue;
    text += fmt::format("  {}: stopped at step {} by {}\n", RunLabel(run), *run.result.stopped_at,
                        run.result.events.back().type);
  }
  return text;
}

std::string Overview(std::span<const SimulationRun> runs, bool details) {
  const bool compared = !runs.empty() && !runs.front().config.empty();
  std::vector<TableRow> rows = {{compared ? "config format policy" : "format policy", "skipped",
                                 "not finite", "first applied", "final scale", "scale range",
                                 "mean harm", "worst harm", "overflow", "Inf/NaN recorded"}};
  if (details) rows.front().insert(rows.front().end(), {"underflow", "energy lost"});
  std::string refused;
  for (const SimulationRun& run : runs) {
    if (run.resume) continue;
    if (run.start) {
      rows.push_back(OverviewRow(run, details));
    } else {
      refused += fmt::format("  {}: refused its parameters ({}: {})\n", RunLabel(run),
                             run.result.events.front().type, run.result.events.front().message);
    }
  }
  constexpr std::string_view kDispensable[] = {"Inf/NaN recorded", "not finite",  "first applied",
                                               "overflow",         "final scale", "energy lost",
                                               "underflow",        "worst harm"};
  return "\n" + FormatTable(rows, kDispensable) + refused + Stopped(runs);
}

// How the interrupted twins differ from the whole runs before them.
std::string Interrupted(std::span<const SimulationRun> runs) {
  std::vector<TableRow> rows = {
      {"interrupted", "checkpoint keeps", "differs from step", "skipped", "final scale"}};
  const SimulationRun* whole = nullptr;
  int64_t step = 0;
  const auto add = [&](const SimulationRun& run, Kept kept, const std::string& differs) {
    const ReplaySummary& summary = run.result.summary;
    const bool own = KeptByStack(FindPolicy(run.policy).checkpoint) == kept;
    rows.push_back({RunLabel(run), std::string(NameOf(kept)) + (own ? " *" : "  "), differs,
                    fmt::format("{}/{}", summary.skipped_steps, summary.steps),
                    ScaleText(summary.final_scale)});
  };
  for (const SimulationRun& run : runs) {
    if (!run.resume) {
      whole = &run;
      continue;
    }
    step = run.resume->at_step;
    if (run.resume->kept == Kept::kScale) add(*whole, Kept::kAll, "never");
    add(run, run.resume->kept,
        run.first_difference ? std::to_string(*run.first_difference) : "never");
  }
  if (rows.size() == 1) return "";
  constexpr std::string_view kDispensable[] = {"final scale", "differs from step"};
  return fmt::format("\n  if interrupted before step {} and resumed:\n", step) +
         FormatTable(rows, kDispensable) +
         "  * what the original software saves in its checkpoint\n";
}

}  // namespace

std::string DescribeTrace(const SourceFacts& facts) {
  const auto model = facts.description.find("model");
  std::string line =
      fmt::format("trace: {}{} ({}), {}\n",
                  model == facts.description.end() ? "" : Printable(model->second) + ", ",
                  Counted(facts.steps, "step"), Range(facts), Bytes(facts.file_bytes));
  if (facts.profile) {
    line += fmt::format("note: read from a profile ({} of {})\n", Bytes(facts.file_bytes),
                        Bytes(facts.profile->trace_bytes));
  }
  return line + NotesText(facts);
}

std::string NotesText(const SourceFacts& facts) {
  std::string text;
  for (const std::string& note : facts.notes) text += Wrap("note: " + note);
  return text;
}

std::string FormatReport(const SourceFacts& facts, std::span<const SimulationRun> runs,
                         const ReportOptions& options) {
  const bool sections = options.details;
  std::string report = DescribeTrace(facts);
  const bool compared = !runs.empty() && !runs.front().config.empty();
  if (sections || compared) report += DescribePolicies(runs);
  report += Overview(runs, sections);
  report +=
      "\n" +
      Wrap(std::string("  harm: relative squared error of a tensor at an applied step: "
                       "mean over the tensors, and worst. ") +
           (sections ? "underflow: share of nonzero finite parameter gradients that become "
                       "zero; energy lost: their share of a step's sum of squares, at the "
                       "worst applied step. "
                     : "") +
           "The replay does not train: in training, a skipped step would change later gradients.");
  report += Interrupted(runs);
  if (!sections) {
    report += "\n  --details adds a section for each run\n\n";
    if (!compared) report += NotesOfPolicies(runs);
  }
  for (const SimulationRun& run : runs) {
    if (sections && !run.resume) report += RunSection(run, options.optimizers, options.top);
  }
  return report;
}

}  // namespace dlsim::sim
