// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/replay_csv.h"

#include <fmt/format.h>

#include <iterator>

#include "sim/base/counter_columns.h"
#include "sim/base/csv_field.h"

namespace dlsim::sim {
namespace {

std::string Row(const ReplayRun& run, const ReplayStep& step, int64_t micro,
                const StepTensor& tensor, const TensorAnswer& answer, size_t part,
                std::span<const std::string> configs, size_t index) {
  std::string row =
      fmt::format("{},{},{},{},{},{},{},{}", run.format, run.policy, step.step,
                  micro < 0 ? std::string() : std::to_string(micro), step.scale,
                  static_cast<int>(step.skipped), CsvField(tensor.name), NameOf(tensor.role));
  ForEachColumn([&](auto counter, auto columns) {
    if constexpr (columns.kInCsv) {
      fmt::format_to(std::back_inserter(row), ",{}",
                     std::invoke(counter.kRow.of, answer.parts[part]));
    }
  });
  if (answer.bounds) row += answer.bounds->counters.exact() ? ",1" : ",0";
  if (!configs.empty()) row += "," + CsvField(configs[index]);
  return row + "\n";
}

}  // namespace

std::string CsvHeader(const SourceFacts& facts, std::span<const std::string> configs) {
  std::string header = "format,policy,step,micro,scale,skipped,tensor,role";
  ForEachColumn([&](auto, auto columns) {
    if constexpr (columns.kInCsv) header.append(",").append(columns.kNames.csv);
  });
  if (facts.profile) header += ",exact";
  return header + (configs.empty() ? "\n" : ",config\n");
}

void WriteCsvRows(const ObservedStep& step, std::span<const std::string> configs, OutputFile& out) {
  const StepMeasurement& measured = step.measurement;
  std::string rows;
  for (const ObservedStep::Run& run : step.runs) {
    if (run.run.resume) continue;
    for (size_t part = 0; part < measured.micro_steps.size(); ++part) {
      for (size_t t = 0; t < measured.tensors.size(); ++t) {
        rows += Row(run.run, run.record, measured.micro_steps[part], measured.tensors[t],
                    run.answers[t], part, configs, run.index);
      }
    }
  }
  out.Write(rows);
}

}  // namespace dlsim::sim
