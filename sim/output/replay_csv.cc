// SPDX-License-Identifier: Apache-2.0
#include "sim/output/replay_csv.h"

#include <fmt/format.h>

#include "sim/output/csv_field.h"

namespace dlsim {
namespace {

std::string Row(const ReplayRun& run, const ReplayStep& step, int64_t micro,
                const StepTensor& tensor, const TensorAnswer& answer, size_t part) {
  const TensorStats& stats = answer.parts[part];
  std::string row = fmt::format(
      "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}", run.format, run.policy, step.step,
      micro < 0 ? std::string() : std::to_string(micro), step.scale, static_cast<int>(step.skipped),
      CsvField(tensor.name), NameOf(tensor.role), stats.elements, stats.zeros, stats.nan, stats.inf,
      stats.underflow, stats.subnormal, stats.overflow, stats.absmax, stats.sum_of_squares);
  if (answer.bounds) row += answer.bounds->counters.exact() ? ",1" : ",0";
  return row + "\n";
}

}  // namespace

std::string CsvHeader(const SourceFacts& facts) {
  return std::string(
             "format,policy,step,micro,scale,skipped,tensor,role,elements,zeros,nan,inf,underflow,"
             "subnormal,overflow,absmax,sumsq") +
         (facts.profile ? ",exact\n" : "\n");
}

void WriteCsvRows(const ObservedStep& step, OutputFile& out) {
  const StepMeasurement& measured = step.measurement;
  std::string rows;
  for (const ObservedStep::Run& run : step.runs) {
    if (run.run.resume) continue;
    for (size_t part = 0; part < measured.micro_steps.size(); ++part) {
      for (size_t t = 0; t < measured.tensors.size(); ++t) {
        rows += Row(run.run, run.record, measured.micro_steps[part], measured.tensors[t],
                    run.answers[t], part);
      }
    }
  }
  out.Write(rows);
}

}  // namespace dlsim
