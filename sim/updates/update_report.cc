// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "dlsim/error.h"
#include "sim/base/quantity.h"
#include "sim/base/table.h"
#include "sim/base/wrap.h"
#include "sim/updates/update_output.h"

namespace dlsim::sim {
namespace {

std::string Number(const std::optional<double>& value) {
  return value ? fmt::format("{:.2g}", WithoutNanSign(*value)) : "-";
}

std::string StepText(const std::optional<int64_t>& step) {
  return step ? std::to_string(*step) : "-";
}

std::string Share(uint64_t count, uint64_t of) {
  return of == 0 ? "-" : Percent(static_cast<double>(count) / static_cast<double>(of));
}

std::string RunTable(const UpdateStudy& study) {
  std::vector<TableRow> rows = {{"run", "verdict", "drift", "progress", "lost", "altered",
                                 "2nd moment", "not finite", "harmed from"}};
  for (const RunOutcome& run : study.runs) {
    rows.push_back({run.run.name, std::string(NameOf(VerdictOf(run))), Number(run.drift),
                    Number(run.progress), Share(run.counts.lost, run.counts.updates),
                    Share(run.counts.altered, run.counts.updates), Number(run.second_bias),
                    std::to_string(run.nonfinite), StepText(run.harmed_since)});
  }
  constexpr std::string_view kDispensable[] = {"not finite", "progress", "2nd moment", "altered"};
  return FormatTable(rows, kDispensable);
}

std::vector<size_t> WorstFirst(const RunOutcome& run) {
  std::vector<size_t> order(run.tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    const TensorOutcome &x = run.tensors[a], &y = run.tensors[b];
    if (x.nonfinite != y.nonfinite) return x.nonfinite > y.nonfinite;
    return x.drift.value_or(0) > y.drift.value_or(0);
  });
  return order;
}

std::string TensorTable(const UpdateStudy& study, const RunOutcome& run, uint64_t top) {
  std::vector<TableRow> rows = {{"worst of " + run.run.name, "elements", "drift", "lost", "altered",
                                 "2nd moment", "not finite", "first lost", "harmed from"}};
  const std::vector<size_t> order = WorstFirst(run);
  for (const size_t t : std::span(order).first(std::min<uint64_t>(top, order.size()))) {
    const TensorOutcome& tensor = run.tensors[t];
    rows.push_back({Printable(study.head.tensors[t].name),
                    std::to_string(study.head.tensors[t].count), Number(tensor.drift),
                    Share(tensor.counts.lost, tensor.counts.updates),
                    Share(tensor.counts.altered, tensor.counts.updates), Number(tensor.second_bias),
                    std::to_string(tensor.nonfinite), StepText(tensor.first_lost),
                    StepText(tensor.harmed_since)});
  }
  constexpr std::string_view kDispensable[] = {"elements", "not finite", "2nd moment", "altered"};
  return FormatTable(rows, kDispensable) + MoreRows(rows.size() - 1, order.size());
}

const RunOutcome& FirstHarmed(const UpdateStudy& study) {
  const auto harmed = [](const RunOutcome& run) { return run.harmed(); };
  const auto found = std::ranges::find_if(study.runs, harmed);
  return found == study.runs.end() ? study.runs.front() : *found;
}

}  // namespace

std::string FormatUpdates(const UpdateStudy& study, uint64_t top) {
  std::string text;
  for (const std::string& line : UpdateSentences(study)) text += Wrap(line);
  text += "\n";
  for (const std::string& line : CoverageSentences(study)) text += Wrap(line);
  text += "\n" + RunTable(study) + "\n" +
          Wrap(
              "  drift: distance from float32's weights over the distance that float32 moves them, "
              "mean "
              "over the tensors; progress: share of that movement; lost: updates that left the "
              "weight as it was; "
              "altered: by more than half; 2nd moment: over float32's.");
  if (top > 0) text += "\n" + TensorTable(study, FirstHarmed(study), top);
  return text;
}

}  // namespace dlsim::sim
