// SPDX-License-Identifier: Apache-2.0
#include "sim/tune/tuning.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "dlsim/error.h"
#include "dlsim/ladder.h"
#include "sim/policies/static_scale.h"
#include "sim/tune/evidence.h"
#include "sim/tune/policy_family.h"
#include "sim/tune/policy_score.h"
#include "sim/tune/policy_search.h"
#include "sim/tune/recommend.h"

namespace dlsim::sim {
namespace {

// Powers of two, as far as the source answers them.
std::vector<float> FirstScales(const TuneSource& source) {
  std::vector<float> scales;
  for (int exponent = kLowestScaleExponent; exponent <= kHighestScaleExponent; ++exponent) {
    scales.push_back(std::ldexp(1.0f, exponent));
  }
  if (source.ladder.empty()) return scales;
  std::erase_if(scales,
                [&](float scale) { return !std::ranges::binary_search(source.ladder, scale); });
  return scales.empty() ? source.ladder : scales;
}

// The tables of one format, one for each finite test.
class Tables {
 public:
  Tables(const NamedFormat& format, const TuneRequest& request, size_t steps)
      : request_(request), steps_(steps) {
    conversion_ = request.conversion;
    conversion_.format = format.format;
    name_ = format.name;
  }

  ScaleTable& For(const PolicyInfo& policy) {
    std::unique_ptr<ScaleTable>& table = tables_[policy.rules.finite_test];
    if (!table) table = std::make_unique<ScaleTable>(Prototype(policy), request_.checked, steps_);
    return *table;
  }

  ReplayRun Prototype(const PolicyInfo& policy) const {
    return {.format = name_,
            .policy = std::string(policy.name),
            .conversion = conversion_,
            .rules = policy.rules,
            .scaler = LossScaler::Make<StaticScale>({1})};
  }

  void AddRequests(const std::vector<float>& scales, std::vector<ColumnRequest>& requests) {
    for (const auto& item : tables_) requests.push_back({item.second.get(), scales});
  }

 private:
  const TuneRequest& request_;
  size_t steps_;
  std::string name_;
  Conversion conversion_;
  std::map<FiniteTest, std::unique_ptr<ScaleTable>> tables_;
};

std::vector<std::string> PoliciesFor(const TuneRequest& request, const std::string& format) {
  std::vector<std::string> policies = {std::string(FindPolicy(request.policy).name)};
  if (format != "fp16") return policies;
  for (const std::string& policy : request.fp16_policies) {
    if (policy != policies.front()) policies.push_back(policy);
  }
  return policies;
}

double LossAtOne(const TuneSource& source, ScaleTable& table) {
  const ColumnRequest one = {&table, {1.0f}};
  MeasureColumns(source, {&one, 1});
  return StaticLoss(*table.Find(1.0f));
}

// Only the narrow ladder of a profile leaves every run open.
Error TooFewScales(const PolicyInfo& policy) {
  return UsageError("policy " + std::string(policy.name),
                    "the profile has too few loss scales to tell any of its runs",
                    "the trace, or a profile with more, such as --scales 2^-24..2^40");
}

FormatTuning TuneFormat(const TuneSource& source, const TuneRequest& request,
                        const std::string& format, Tables& tables) {
  FormatTuning tuning;
  tuning.format = format;
  for (const std::string& policy : PoliciesFor(request, format)) {
    const PolicyFamily family = FamilyOf(policy, format);
    ScaleTable& table = tables.For(*family.policy);
    PolicySearch search(source, family, table);
    search.Run();
    MeasureStaticScales(source, table);
    if (search.Ranking().empty()) {
      if (tuning.choices.empty()) throw TooFewScales(*family.policy);
      continue;
    }
    tuning.choices.push_back(Recommend(search, family, table));
  }
  ScaleTable& table = tables.For(*tuning.choices.front().family.policy);
  tuning.loss_at_one = LossAtOne(source, table);
  tuning.best_static = BestStatic(table);
  tuning.window = WindowOf(table);
  tuning.facts = table.facts();
  tuning.headroom = HeadroomOf(tuning.facts);
  Judge(tuning, table);
  return tuning;
}

void FindStride(const std::vector<StepFacts>& facts, TuneResult& result) {
  result.steps = facts.size();
  std::vector<int64_t> distances;
  for (size_t i = 1; i < facts.size(); ++i) distances.push_back(facts[i].step - facts[i - 1].step);
  if (distances.empty()) return;
  const auto [least, most] = std::ranges::minmax(distances);
  result.least_stride = least;
  result.most_stride = most;
}

}  // namespace

TuneResult Tune(const TuneSource& source, const TuneRequest& request) {
  std::vector<Tables> tables;
  std::vector<ColumnRequest> requests;
  std::vector<ReplayRun> prototypes;
  std::vector<std::string> names;
  for (const std::string& name : request.formats) {
    const NamedFormat format = ParseFormat(name);
    if (std::ranges::count(names, format.name)) continue;
    names.push_back(format.name);
    tables.emplace_back(format, request, source.step_count);
    for (const std::string& policy : PoliciesFor(request, format.name)) {
      tables.back().For(*FamilyOf(policy, format.name).policy);
    }
    tables.back().AddRequests(FirstScales(source), requests);
    prototypes.push_back(tables.back().Prototype(FindPolicy(request.policy)));
  }
  MeasureColumns(source, requests);
  TuneResult result;
  result.ladder_only = !source.ladder.empty();
  for (size_t i = 0; i < names.size(); ++i) {
    result.formats.push_back(TuneFormat(source, request, names[i], tables[i]));
  }
  ReplayEvidence(source, result.formats, prototypes);
  FindStride(result.formats.front().facts, result);
  for (FormatTuning& tuning : result.formats) NoteDoubts(tuning, result);
  return result;
}

}  // namespace dlsim::sim
