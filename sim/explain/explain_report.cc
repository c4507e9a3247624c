// SPDX-License-Identifier: Apache-2.0
// The report of dlsim explain.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "sim/base/quantity.h"
#include "sim/base/table.h"
#include "sim/base/wrap.h"
#include "sim/explain/explanation.h"

namespace dlsim::sim {
namespace {

constexpr size_t kShownBrackets = 20;
constexpr size_t kShownPolicies = 8;
constexpr const char* kNotNormal = "but the loss is not finite at the end: not normal";

std::string StepName(const Explanation& explanation, size_t index) {
  if (!explanation.counted) return fmt::format("overflow {}", index + 1);
  return std::to_string(explanation.path.first_step + static_cast<int64_t>(index));
}

// " with init_scale 65536, delayed_shift 2", of what the log states.
std::string Parameters(const PolicyMatch& match) {
  std::string text;
  for (const ParameterEvidence& evidence : match.evidence) {
    const bool bounded = evidence.least && *evidence.least > 1;
    if (!evidence.seen && !bounded) continue;
    text += text.empty() ? " with " : ", ";
    text += evidence.name + " ";
    if (evidence.seen || !bounded) {
      text += ParameterText(evidence.name, evidence.value);
    } else if (evidence.most) {
      text += fmt::format("{} to {}", *evidence.least, *evidence.most);
    } else {
      text += fmt::format("{} or more", *evidence.least);
    }
  }
  return text;
}

// The losses end as not finite, whatever the skipped steps were.
bool EndsNonfinite(const Explanation& explanation) {
  const std::vector<PrintedLoss>& losses = explanation.path.losses.printed;
  return !losses.empty() && IsNonfinite(losses.back());
}

// Of a log without a skipped step there is nothing to diagnose, unless its losses fail.
std::string DiagnosisLine(const Explanation& explanation) {
  const bool all_applied = explanation.skips.skipped == 0 && !explanation.path.stretches.empty();
  if (all_applied && std::ranges::none_of(explanation.path.losses.printed, IsNonfinite)) return "";
  return Wrap(fmt::format("diagnosis: {}: {}", NameOf(explanation.diagnosis.side),
                          explanation.diagnosis.evidence));
}

std::string PolicyLine(const Explanation& explanation) {
  const Inference& inference = explanation.inference;
  if (explanation.steps.empty()) return "policy: unknown: the log has one record only";
  if (HasMeans(explanation.path)) {
    return "policy: unknown: the log has means of the scale";
  }
  if (inference.matches.empty()) {
    const size_t good = inference.best ? inference.best->fit.explained : 0;
    const ScalePath& fitted = FittedPath(explanation.path, inference);
    const auto line_of = [&](size_t stretch) { return fitted.stretches[stretch].line; };
    if (inference.undecided) {
      std::string line = "policy: unknown: not every set of parameters was tried";
      if (good == 0) return line;
      return line + fmt::format("; {} reproduces the scale path up to line {}",
                                inference.best->policy->name, line_of(good - 1));
    }
    std::string line = "policy: none of the " + std::to_string(inference.tried) + " reproduces ";
    if (good >= fitted.stretches.size()) return line + "the scale path";
    line += fmt::format("the scale path from line {} on", line_of(good));
    if (inference.best) line += fmt::format("; {} does up to there", inference.best->policy->name);
    return line;
  }
  const PolicyMatch& first = inference.matches.front();
  std::string line = fmt::format("policy: {}{} reproduces every scale change", first.policy->name,
                                 Parameters(first));
  if (inference.matches.size() > 1) {
    const size_t others = inference.matches.size() - 1;
    line += fmt::format(" (as {} {} of the other {} policies)", others == 1 ? "does" : "do", others,
                        inference.tried - 1);
  }
  return line;
}

// Marian trains on with the scale at its minimum; the others end with an exception.
bool GoesOnAtMinimum(const Explanation& explanation) {
  return explanation.path.stack == LogStack::kMarian;
}

std::string ForecastText(const Explanation& explanation) {
  if (explanation.path.zero_at_line) {
    return fmt::format("; at line {} the printed scale is 0: the training cannot recover",
                       *explanation.path.zero_at_line);
  }
  if (explanation.path.stopped_at_line) {
    return fmt::format("; at line {} {}the scale could not fall further",
                       *explanation.path.stopped_at_line,
                       GoesOnAtMinimum(explanation) ? "" : "the training ended, because ");
  }
  if (!explanation.minimum) return "";
  const MinimumForecast& minimum = *explanation.minimum;
  std::string text;
  if (minimum.overflows > 0) {
    text = fmt::format("; after {} in a row it is at its minimum {}",
                       Counted(static_cast<uint64_t>(minimum.overflows), "overflow"),
                       ScaleText(minimum.minimum));
  } else {
    text = "; the scale is at its minimum";
  }
  if (!minimum.raises.empty()) {
    text += fmt::format("; after {} in a row {} is raised",
                        Counted(static_cast<uint64_t>(minimum.overflows_to_raise), "overflow"),
                        minimum.raises);
  }
  return text;
}

std::string WarmUpText(const Explanation& explanation) {
  if (!explanation.path.from_start || explanation.skips.warm_up_skips == 0) return "";
  return fmt::format("{} of them warm-up; then ", explanation.skips.warm_up_skips);
}

std::string SkipLine(const Explanation& explanation) {
  const SkipSummary& skips = explanation.skips;
  if (skips.kind == SkipKind::kDivergence && !skips.tail) {
    return fmt::format(
               "skips: number unknown, but the {} (divergence)",
               GoesOnAtMinimum(explanation) ? "scale is at its minimum" : "training ended") +
           ForecastText(explanation);
  }
  if (skips.kind == SkipKind::kUnknown) return "skips: unknown: the log prints no loss scale";
  if (explanation.steps.empty()) return "skips: unknown: the log has one record only";
  const bool fails = EndsNonfinite(explanation);
  std::string line = explanation.counted
                         ? fmt::format("skips: {} of {}, ", skips.skipped,
                                       Counted(static_cast<uint64_t>(skips.steps), "step"))
                         : fmt::format("skips: {}, ", skips.skipped);
  switch (skips.kind) {
    case SkipKind::kNone:
      return explanation.counted ? line + "none skipped" : "skips: none";
    case SkipKind::kWarmUp:
      if (explanation.counted) {
        return line + "all in warm-up, " +
               (fails ? kNotNormal : "while the scale finds its level: normal");
      }
      return line + (fails ? "at the start of training, " + std::string(kNotNormal)
                           : "normal at the start of training (warm-up)");
    case SkipKind::kSteady:
      if (!explanation.path.from_start && !skips.expected_share) {
        return line + "in mid-training; the log does not say how often the scale grows";
      }
      return line + WarmUpText(explanation) + "steady, " +
             (fails ? kNotNormal : "as expected from growth of the scale");
    case SkipKind::kFrequent:
      return line + WarmUpText(explanation) +
             fmt::format("more often ({}) than growth of the scale explains ({})",
                         Percent(*skips.share), Percent(*skips.expected_share));
    case SkipKind::kDivergence:
      line +=
          skips.tail_skips == skips.skipped ? "all" : fmt::format("the last {}", skips.tail_skips);
      line += fmt::format(" from {}{} on: the scale falls and does not recover (divergence)",
                          explanation.counted ? "step " : "", StepName(explanation, *skips.tail));
      return line + ForecastText(explanation);
    case SkipKind::kUnknown:
      break;
  }
  return line;
}

std::string MagnitudeLine(const Explanation& explanation) {
  const BracketTotals& totals = explanation.totals;
  std::string line = "largest gradient (" + explanation.format + "): ";
  if (!totals.applied_at_most && !totals.skipped_above) {
    return line + (explanation.path.bounds_nothing ? "not bounded" : "no scale is known");
  }
  if (totals.applied_at_most) {
    line += fmt::format("at most {:.5g} in applied steps", *totals.applied_at_most);
  }
  if (totals.applied_at_most && totals.last_at_most != totals.applied_at_most) {
    line += fmt::format(" (the last {:.5g})", *totals.last_at_most);
  }
  if (totals.applied_at_most && totals.skipped_above) line += "; ";
  if (totals.skipped_above) {
    line += fmt::format("above {:.5g} in skipped steps, or not finite", *totals.skipped_above);
  }
  return line;
}

std::string PolicyTable(const Explanation& explanation) {
  const Inference& inference = explanation.inference;
  if (inference.matches.empty()) return "";
  std::vector<TableRow> rows = {{"parameter", "value", "in the log"}};
  for (const ParameterEvidence& evidence : inference.matches.front().evidence) {
    std::string in_log = evidence.seen ? "yes" : "no";
    if (!evidence.seen && evidence.most && evidence.least != evidence.most) {
      in_log = fmt::format("{} to {}", *evidence.least, *evidence.most);
    } else if (!evidence.seen && evidence.least && *evidence.least > 1) {
      in_log = fmt::format("{} or more", *evidence.least);
    }
    rows.push_back({evidence.name, ParameterText(evidence.name, evidence.value), in_log});
  }
  std::string text =
      fmt::format("\n{}\n", inference.matches.front().policy->name) + FormatTable(rows);
  if (inference.matches.size() == 1) return text;
  std::string others = "  also:";
  for (size_t i = 1; i < inference.matches.size() && i <= kShownPolicies; ++i) {
    others += fmt::format("{} {}", i == 1 ? "" : ",", inference.matches[i].policy->name);
  }
  if (inference.matches.size() > kShownPolicies + 1) {
    others += fmt::format(", and {} more (--json)", inference.matches.size() - kShownPolicies - 1);
  }
  return text + Wrap(others);
}

std::string Bound(const std::optional<double>& bound) {
  return bound ? fmt::format("{:.5g}", *bound) : "";
}

std::string BracketTable(const Explanation& explanation) {
  const std::string name = explanation.counted ? "steps" : "overflows";
  std::vector<TableRow> rows = {
      {name, "scale", "applied", "skipped", "applied up to", "skipped above"}};
  for (const GradientBracket& bracket : explanation.brackets) {
    if (rows.size() > kShownBrackets) break;
    const auto number = [&](size_t i) {
      return explanation.counted ? explanation.path.first_step + static_cast<int64_t>(i)
                                 : static_cast<int64_t>(i) + 1;
    };
    const std::string steps =
        bracket.first == bracket.last
            ? std::to_string(number(bracket.first))
            : fmt::format("{} to {}", number(bracket.first), number(bracket.last));
    const std::string applied = explanation.counted ? std::to_string(bracket.applied) : "?";
    rows.push_back({steps, std::isnan(bracket.scale) ? "?" : ScaleText(bracket.scale), applied,
                    std::to_string(bracket.skipped), Bound(bracket.at_most), Bound(bracket.above)});
  }
  std::string text =
      fmt::format("\nlargest gradient, unscaled, at each scale\n") + FormatTable(rows);
  if (explanation.brackets.size() > kShownBrackets) {
    text +=
        fmt::format("  ... and {} more (--json)\n", explanation.brackets.size() - kShownBrackets);
  }
  return text;
}

std::string WhatIfTable(const Explanation& explanation) {
  if (explanation.what_if.empty()) return "";
  std::vector<TableRow> rows = {
      {"what if", "if uncertain", "skipped", "of steps", "uncertain", "lowest", "last scale"}};
  std::string raises;
  for (const WhatIf& what_if : explanation.what_if) {
    for (const auto& [name, run] :
         {std::pair("applied", &what_if.applied), std::pair("skipped", &what_if.skipped)}) {
      rows.push_back({what_if.policy, name, std::to_string(run->skipped),
                      std::to_string(run->steps), std::to_string(run->uncertain),
                      ScaleText(run->min_scale), ScaleText(run->last_scale)});
      if (run->raises.empty()) continue;
      raises += Wrap(fmt::format("  {} raises {} at step {} if uncertain steps are {}",
                                 what_if.policy, run->raises,
                                 StepName(explanation, static_cast<size_t>(run->steps) - 1), name));
    }
  }
  return "\n" + FormatTable(rows) + raises +
         "  uncertain: the step overflowed at a scale above this policy's, or did not at one\n"
         "  below it, so the log does not show what would have happened\n";
}

std::string Notes(const Explanation& explanation) {
  std::vector<std::string> notes = explanation.path.notes;
  const Inference& inference = explanation.inference;
  if (inference.rest) {
    notes.push_back(fmt::format(
        "the log starts in mid-training: the policy is fitted from line {} on, where the scale "
        "first changes",
        inference.rest->stretches.front().line));
  } else if (!explanation.path.from_start) {
    notes.emplace_back("the log starts in mid-training, and its scale never changes");
  }
  if (!explanation.counted) {
    notes.emplace_back(
        "the log does not count the steps between its messages, so growth intervals are unknown");
  }
  if (inference.undecided) {
    notes.emplace_back(
        "not every set of parameters was tried: there are too many of them, or too many ways to "
        "place the overflows");
  }
  if (!inference.matches.empty() && inference.matches.front().fit.branches > 1) {
    notes.emplace_back(
        "the log does not say exactly which steps overflowed; one consistent assignment is shown");
  }
  std::string text;
  for (const std::string& note : notes) text += Wrap("note: " + note);
  return text.empty() ? "" : "\n" + text;
}

}  // namespace

std::string FormatExplanation(const Explanation& explanation) {
  if (explanation.path.stretches.empty()) {
    return DiagnosisLine(explanation) + Wrap(SkipLine(explanation));
  }
  return DiagnosisLine(explanation) + Wrap(PolicyLine(explanation)) + Wrap(SkipLine(explanation)) +
         Wrap(MagnitudeLine(explanation)) + PolicyTable(explanation) + BracketTable(explanation) +
         WhatIfTable(explanation) + Notes(explanation);
}

}  // namespace dlsim::sim
