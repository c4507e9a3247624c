// SPDX-License-Identifier: Apache-2.0
// Looks for the parameters of a policy with the least mean loss on a table of loss scales.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "sim/tune/policy_score.h"
#include "sim/tune/static_search.h"

namespace dlsim::sim {

class PolicySearch {
 public:
  // All must live as long as this; the table has the powers of two measured.
  PolicySearch(const TuneSource& source, const PolicyFamily& family, ScaleTable& table);

  // Searches until the least possible loss is reached or nothing improves any more: seeds over a
  // grid, descents from the best ones along each parameter, random steps around the best, then the
  // same with the scales at which single steps just do not overflow.
  void Run();

  // Returns the score of parameters, measuring scales that the table lacks; nothing if the policy
  // refuses them or the source cannot tell.
  std::optional<PolicyScore> ScoreExactly(const ScaleParameters& parameters);

  // All exact scores so far, best first; those that are not eligible last.
  std::vector<PolicyScore> Ranking() const;

  double best_loss() const;
  double least_loss() const { return least_loss_; }
  uint64_t evaluations() const { return evaluations_; }

 private:
  using Key = std::tuple<double, double, double, int64_t, int64_t>;

  const PolicyScore* Score(const ScaleParameters& parameters, double of_interest = 1);
  void AddSeeds();
  std::vector<ScaleParameters> Neighbours(const ScaleParameters& from) const;
  void Descend(const ScaleParameters& from);
  void DescendFromBest(size_t count);
  void RandomSteps(size_t count);
  void AddLimitsToValues();
  bool MeasurePromising();
  bool Finished() const;

  const TuneSource& source_;
  const PolicyFamily& family_;
  ScaleTable& table_;
  std::vector<double> values_;  // of scales
  std::vector<int64_t> intervals_;
  std::map<Key, std::optional<PolicyScore>> scores_;
  const PolicyScore* best_ = nullptr;  // of the exact ones
  double least_loss_ = 0;
  uint64_t evaluations_ = 0, budget_ = 0;
};

}  // namespace dlsim::sim
