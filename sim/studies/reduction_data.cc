// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>

#include "sim/base/csv_field.h"
#include "sim/base/json_stream.h"
#include "sim/base/quantity.h"
#include "sim/studies/reduction_output.h"

namespace dlsim::sim {
namespace {

Json JsonByRanks(const ReductionStudy& study, const ReductionResult& result) {
  Json list = Json::array();
  const std::vector<size_t> counts = RankCounts(study.options.ranks);
  for (size_t c = 0; c < counts.size(); ++c) {
    list.push_back({{"ranks", counts[c]},
                    {"error", JsonNumber(result.errors[c])},
                    {"additions", JsonNumber(result.additions[c])}});
  }
  return list;
}

Json JsonTensor(const ReductionStudy& study, const TensorErrors& tensor) {
  Json object = {{"tensor", tensor.name}, {"runs", Json::array()}};
  for (size_t r = 0; r < study.reductions.size(); ++r) {
    const TensorError& error = tensor.reductions[r];
    object["runs"].push_back({{"run", study.reductions[r].reduction.name},
                              {"error", JsonNumber(error.mean())},
                              {"worst_error", JsonNumber(error.worst)},
                              {"worst_step", error.worst_step},
                              {"lost", error.lost}});
  }
  return object;
}

Json JsonGroups(const ReductionStudy& study) {
  const RankGroups& groups = study.groups;
  return {{"source", NameOf(groups.source)}, {"groups", groups.groups},
          {"fewest", groups.fewest_ranks},   {"most", groups.most_ranks},
          {"left_out", groups.left_out},     {"nonfinite", study.nonfinite},
          {"noise", JsonNumber(study.noise)}};
}

double RelativeRoot(const SquareSums& sums, double SquareSums::*sum) {
  return WithoutNanSign(std::sqrt(sums.Relative(sum)));
}

}  // namespace

Json JsonRun(const ReductionResult& result) {
  const Reduction& reduction = result.reduction;
  Json object = {{"name", reduction.name}, {"format", reduction.format}};
  object["algorithm"] = reduction.level ? Json() : Json(NameOf(reduction.algorithm));
  object["division"] = reduction.level ? Json() : Json(NameOf(reduction.division));
  object["level"] = reduction.level ? Json(*reduction.level) : Json();
  object["scale"] = JsonNumber(static_cast<double>(reduction.scale));
  const auto number = [&](double error) { return result.has_error() ? JsonNumber(error) : Json(); };
  object["error"] = number(result.error());
  object["low"] = number(result.low);
  object["high"] = number(result.high);
  object["certain"] = number(result.certain);
  object["additions"] = number(result.additions.back());
  object["exponent"] = result.exponent ? JsonNumber(*result.exponent) : Json();
  object["lost"] = JsonNumber(result.lost);
  object["overflowed"] = JsonNumber(result.overflowed);
  object["overflow"] = NameOf(result.overflow);
  object["safe_scale"] = std::isfinite(result.safe_scale) ? JsonNumber(result.safe_scale) : Json();
  return object;
}

void WriteReductionJson(const Json& trace, const Json& options, const Json& expectations,
                        const ReductionStudy& study, OutputFile& out) {
  JsonStream json("dlsim.accumulate/2", trace, options, out);
  json.Member("lines", ReductionVerdict(study));
  json.Member("ranks", JsonGroups(study));
  json.Array("runs", study.reductions, [&](const ReductionResult& result) {
    Json object = JsonRun(result);
    object["by_ranks"] = JsonByRanks(study, result);
    return object;
  });
  json.Array("tensors", study.tensors,
             [&](const TensorErrors& tensor) { return JsonTensor(study, tensor); });
  if (!expectations.is_null()) json.Member("expectations", expectations);
  json.Finish();
}

std::string ReductionCsvHeader() {
  return "run,step,tensor,elements,sampled,nonfinite,error,low,high,certain,additions,lost,"
         "overflowed\n";
}

std::string ReductionCsvRows(const TensorAtStep& tensor, std::span<const Reduction> reductions) {
  std::string rows;
  for (size_t r = 0; r < reductions.size(); ++r) {
    const TensorReduction& of = tensor.reductions[r];
    const SquareSums& sums = of.by_ranks.back();
    rows += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{}\n", CsvField(reductions[r].name),
                        tensor.step, CsvField(tensor.name), tensor.elements, tensor.sampled,
                        tensor.nonfinite, RelativeRoot(sums, &SquareSums::error),
                        RelativeRoot(sums, &SquareSums::low), RelativeRoot(sums, &SquareSums::high),
                        RelativeRoot(sums, &SquareSums::certain),
                        RelativeRoot(sums, &SquareSums::additions), of.lost, of.overflowed);
  }
  return rows;
}

}  // namespace dlsim::sim
