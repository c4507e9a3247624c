// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "dlsim/error.h"
#include "sim/base/quantity.h"
#include "sim/base/table.h"
#include "sim/replay/report.h"
#include "sim/studies/reduction_output.h"

namespace dlsim::sim {
namespace {

std::string ErrorText(double error) {
  return error == 0 ? "0" : fmt::format("{:.1e}", WithoutNanSign(error));
}

// What is said of one format: its runs are those from `first` on.
std::vector<const ReductionResult*> RunsOfFormat(const ReductionStudy& study,
                                                 const Reduction& first) {
  std::vector<const ReductionResult*> runs;
  for (const ReductionResult& result : study.reductions) {
    const Reduction& of = result.reduction;
    if (of.format == first.format && of.level == first.level) runs.push_back(&result);
  }
  return runs;
}

std::string GrowthText(const ReductionResult& result) {
  if (!result.exponent) return "";
  if (std::fabs(*result.exponent) < 0.1)
    return "; the error of additions does not grow with the number of ranks";
  return fmt::format("; the error of additions grows as ranks^{:.2f}", *result.exponent);
}

// The float32 sums of the same format, and float32 itself, compared with a run that rounds each
// addition.
std::string ComparedText(const ReductionStudy& study, const ReductionResult& run) {
  std::string text;
  for (const ReductionResult& other : study.reductions) {
    const Reduction& of = other.reduction;
    const bool same_format = of.format == run.reduction.format;
    if (of.level || of.division != run.reduction.division) continue;
    if (same_format && of.algorithm == Algorithm::kAllToAll && &other != &run) {
      text += fmt::format("; with float32 sums (all-to-all) {}", ErrorText(other.error()));
    }
    if (!of.wire) text += fmt::format("; in fp32 {}", ErrorText(other.error()));
  }
  return text;
}

// What overflows when divided at one time: all algorithms alike, or these.
std::string OverflowText(const std::vector<const ReductionResult*>& runs, Division division) {
  std::string text;
  for (const OverflowIn overflow : {OverflowIn::kEveryOrder, OverflowIn::kSomeOrders}) {
    std::vector<std::string_view> algorithms;
    double safe = HUGE_VAL;
    size_t all = 0;
    for (const ReductionResult* run : runs) {
      if (run->reduction.division != division) continue;
      ++all;
      if (run->overflow != overflow) continue;
      algorithms.push_back(NameOf(run->reduction.algorithm));
      safe = std::min(safe, run->safe_scale);
    }
    if (algorithms.empty()) continue;
    text += text.empty() ? "" : ", ";
    if (algorithms.size() < all) text += fmt::format("{} ", fmt::join(algorithms, " and "));
    text += fmt::format("in {} (safe up to {})", NameOf(overflow), ScaleText(safe));
  }
  return text;
}

std::string OverflowText(const std::vector<const ReductionResult*>& runs) {
  std::string text;
  for (const auto& [division, name] : EnumNames(Division())) {
    const std::string of = OverflowText(runs, division);
    if (of.empty()) continue;
    const std::string_view when = division == Division::kSqrt ? "by the square root" : name;
    text += fmt::format("{}divided {}: {}", text.empty() ? "" : "; ", when, of);
  }
  const double scale = static_cast<double>(runs.front()->reduction.scale);
  const std::string at = scale == 1 ? "" : " at loss scale " + ScaleText(scale);
  return text.empty() ? fmt::format("Nothing overflows{}.", at)
                      : fmt::format("Overflows{}, {}.", at, text);
}

std::string FormatLine(const ReductionStudy& study,
                       const std::vector<const ReductionResult*>& runs) {
  const ReductionResult& run = *runs.front();
  const std::string name =
      fmt::format("{} over {} ranks: ", run.reduction.name, study.options.ranks);
  if (!run.has_error()) return name + "no finite result. " + OverflowText(runs);
  return fmt::format("{}error {} of the gradient ({} to {} in other orders{}){}. {}", name,
                     ErrorText(run.error()), ErrorText(run.low), ErrorText(run.high),
                     GrowthText(run), ComparedText(study, run), OverflowText(runs));
}

std::string NoiseLine(const ReductionStudy& study) {
  const auto worst = std::ranges::max_element(study.reductions, {}, &ReductionResult::error);
  const std::string noise =
      fmt::format("By itself the mean over {} ranks has a sampling error of {}",
                  study.options.ranks, ErrorText(study.noise));
  if (worst->error() == 0) return noise + ".";
  return fmt::format("{}, {:.2g} times the largest error here ({}).", noise,
                     study.noise / worst->error(), worst->reduction.name);
}

std::string SeenLine(const ReductionStudy& study) {
  const RankGroups& groups = study.groups;
  const std::string count = groups.fewest_ranks == groups.most_ranks
                                ? std::to_string(groups.most_ranks)
                                : fmt::format("{} to {}", groups.fewest_ranks, groups.most_ranks);
  std::string text = "Based on " + count + " ";
  text += groups.source == RankSource::kRanks
              ? "recorded ranks"
              : std::string(NameOf(groups.source)) + " taken as ranks";
  if (groups.source != RankSource::kSteps) text += " of " + Counted(groups.groups, "step");
  if (groups.fewest_ranks < study.options.ranks) {
    text += ", from which each element of the other ranks is drawn";
  }
  text += fmt::format("; errors on up to {} of each tensor, overflow on all.",
                      Counted(study.options.elements, "element"));
  if (groups.left_out > 0) {
    text += fmt::format(" Left out: {} with a single one.", Counted(groups.left_out, "step"));
  }
  if (study.nonfinite > 0) {
    text += fmt::format(" Left out: {} of a tensor and rank that are not finite.",
                        Counted(study.nonfinite, "gradient"));
  }
  return text;
}

// A scale matters where the format overflows, or gradients carry one.
std::string SafeScaleText(const ReductionResult& run) {
  const bool matters = run.reduction.scale != 1 || run.overflow != OverflowIn::kNoOrder;
  return matters ? ScaleText(run.safe_scale) : "-";
}

TableRow OverviewRow(const ReductionStudy& study, size_t r) {
  const ReductionResult& run = study.reductions[r];
  const auto error_of = [r](const TensorErrors& tensor) { return tensor.reductions[r].mean(); };
  const auto worst = std::ranges::max_element(study.tensors, {}, error_of);
  const auto text = [&](double error) { return run.has_error() ? ErrorText(error) : "-"; };
  return {run.reduction.name,
          text(run.error()),
          text(run.low),
          text(run.high),
          text(run.certain),
          run.exponent ? fmt::format("{:.2f}", *run.exponent) : "-",
          Percent(run.lost),
          std::string(NameOf(run.overflow)),
          SafeScaleText(run),
          Printable(worst->name),
          ErrorText(error_of(*worst))};
}

// Divisions that make no difference share a row.
std::string Overview(const ReductionStudy& study) {
  std::vector<TableRow> rows = {{"reduction", "error", "low", "high", "certain", "growth", "lost",
                                 "overflows in", "safe scale", "worst tensor", "its error"}};
  const Reduction* last = nullptr;
  for (size_t r = 0; r < study.reductions.size(); ++r) {
    const Reduction& of = study.reductions[r].reduction;
    TableRow row = OverviewRow(study, r);
    if (last != nullptr && !of.level && last->format == of.format &&
        last->algorithm == of.algorithm &&
        std::equal(row.begin() + 1, row.end(), rows.back().begin() + 1)) {
      rows.back().front() += fmt::format(", {}", NameOf(of.division));
      continue;
    }
    last = &of;
    rows.push_back(std::move(row));
  }
  constexpr std::string_view kDispensable[] = {"certain",   "safe scale", "lost", "worst tensor",
                                               "its error", "low",        "high"};
  return FormatTable(rows, kDispensable);
}

// The tensors that the first of the worst formats harms most.
std::string WorstTensors(const ReductionStudy& study, uint64_t top) {
  const auto worst = std::ranges::max_element(study.reductions, {}, &ReductionResult::error);
  const size_t r = static_cast<size_t>(worst - study.reductions.begin());
  std::vector<const TensorErrors*> tensors;
  for (const TensorErrors& tensor : study.tensors) tensors.push_back(&tensor);
  std::ranges::stable_sort(tensors, std::ranges::greater(), [r](const TensorErrors* tensor) {
    return tensor->reductions[r].mean();
  });
  tensors.resize(std::min<size_t>(tensors.size(), top));
  std::vector<TableRow> rows = {
      {"worst of " + worst->reduction.name, "error", "worst", "at step", "lost"}};
  for (const TensorErrors* tensor : tensors) {
    const TensorError& error = tensor->reductions[r];
    rows.push_back({Printable(tensor->name), ErrorText(error.mean()), ErrorText(error.worst),
                    std::to_string(error.worst_step), std::to_string(error.lost)});
  }
  return FormatTable(rows);
}

}  // namespace

std::vector<std::string> ReductionVerdict(const ReductionStudy& study) {
  std::vector<std::string> lines;
  const Reduction* last = nullptr;
  for (const ReductionResult& result : study.reductions) {
    const Reduction& of = result.reduction;
    const bool is_new = last == nullptr || last->format != of.format || last->level != of.level;
    last = &of;
    if (is_new && of.wire) lines.push_back(FormatLine(study, RunsOfFormat(study, of)));
  }
  lines.push_back(NoiseLine(study));
  lines.push_back(SeenLine(study));
  if (!study.options.origin.empty()) lines.push_back(study.options.origin);
  return lines;
}

std::string FormatReductions(const SourceFacts& facts, const ReductionStudy& study, uint64_t top) {
  std::string text;
  for (const std::string& line : ReductionVerdict(study)) text += Wrap(line);
  text += "\n" + DescribeTrace(facts) + "\n" + Overview(study);
  if (top > 0) text += "\n" + WorstTensors(study, top);
  return text;
}

}  // namespace dlsim::sim
