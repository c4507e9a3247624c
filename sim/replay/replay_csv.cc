// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/replay_csv.h"

#include <fmt/format.h>

#include <iterator>

#include "sim/base/counter_columns.h"
#include "sim/base/csv_field.h"
#include "sim/base/quantity.h"

namespace dlsim::sim {
namespace {

std::string Row(const ObservedStep::Run& of, int64_t micro, double scale, const TensorInfo& tensor,
                const TensorStats& stats, std::span<const std::string> configs) {
  std::string row =
      fmt::format("{},{},{},{},{},{},{},{}", of.run.format, of.run.policy, of.record.step,
                  micro < 0 ? std::string() : std::to_string(micro), WithoutNanSign(scale),
                  static_cast<int>(of.record.skipped), CsvField(tensor.name), NameOf(tensor.role));
  ForEachColumn([&](auto counter, auto columns) {
    if constexpr (columns.kInCsv) {
      fmt::format_to(std::back_inserter(row), ",{}", std::invoke(counter.kRow.of, stats));
    }
  });
  if (!configs.empty()) row += "," + CsvField(configs[of.index]);
  return row + "\n";
}

// Adds the rows of the tensors of one pass, part by part.
void AddRows(const ObservedStep::Run& of, std::span<const int64_t> micro_steps,
             std::span<const TensorInfo> tensors, const StepAnswer& answers, double scale,
             std::span<const std::string> configs, std::string& rows) {
  for (size_t part = 0; part < micro_steps.size(); ++part) {
    for (size_t t = 0; t < answers.size(); ++t) {
      rows += Row(of, micro_steps[part], scale, tensors[t], answers[t].Part(part), configs);
    }
  }
}

}  // namespace

std::string CsvHeader(std::span<const std::string> configs) {
  std::string header = "format,policy,step,micro,scale,skipped,tensor,role";
  ForEachColumn([&](auto, auto columns) {
    if constexpr (columns.kInCsv) header.append(",").append(columns.kNames.csv);
  });
  return header + (configs.empty() ? "\n" : ",config\n");
}

void WriteCsvRows(const ObservedStep& step, std::span<const std::string> configs, OutputFile& out) {
  std::string rows;
  for (const ObservedStep::Run& run : step.runs) {
    if (run.run.resume) continue;
    const StepTables& tables = step.step.tables();
    AddRows(run, tables.micro_steps, step.step.gradients(), *run.answers, run.record.scale, configs,
            rows);
    if (run.forward == nullptr) continue;
    AddRows(run, tables.micro_steps, step.step.forward(), *run.forward, 1, configs, rows);
  }
  out.Write(rows);
}

}  // namespace dlsim::sim
