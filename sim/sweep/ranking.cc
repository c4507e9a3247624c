// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/ranking.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

namespace dlsim::sim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double KeyOf(const SweepOutcome& outcome, RankBy by) {
  switch (by) {
    case RankBy::kSkipped:
      return static_cast<double>(outcome.skipped_steps);
    case RankBy::kEnergyLost:
      return outcome.mean_energy_lost;
    case RankBy::kWorstStep:
      return outcome.skipped_steps == outcome.steps ? kInfinity : outcome.worst_step_energy_lost;
    case RankBy::kFirstApplied:
      return outcome.first_applied_step ? static_cast<double>(*outcome.first_applied_step)
                                        : kInfinity;
    case RankBy::kFinalScale:
      return std::isnan(outcome.final_scale) ? kInfinity : -outcome.final_scale;
    default:
      return outcome.mean_loss.value_or(0);
  }
}

// What ranks runs before head-room does; without windows nothing is known of that, and energy comes
// before.
auto TieKey(const SweepOutcome& o, RankBy by) {
  const double run = o.fatal ? -static_cast<double>(o.steps) : 0;
  return std::tuple(o.fatal.has_value(), run, KeyOf(o, by), o.mean_loss.value_or(0),
                    o.skipped_steps, o.mean_loss ? 0 : o.mean_energy_lost);
}

}  // namespace

std::vector<size_t> Rank(std::span<const SweepOutcome> outcomes, std::span<const Prefers> prefers,
                         RankBy by) {
  std::vector<size_t> order(outcomes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto key = [&](size_t i) {
    const SweepOutcome& o = outcomes[i];
    const double scale = std::isnan(o.min_scale) ? 0 : o.min_scale;
    return std::tuple(TieKey(o, by), -static_cast<double>(o.steps_with_headroom),
                      o.mean_energy_lost, prefers[i] == Prefers::kHighScale ? -scale : scale, i);
  };
  std::ranges::sort(order, [&](size_t a, size_t b) { return key(a) < key(b); });
  return order;
}

std::vector<size_t> ParetoFront(std::span<const SweepOutcome> outcomes,
                                std::span<const Prefers> prefers) {
  std::vector<size_t> order = Rank(outcomes, prefers, RankBy::kSkipped);
  const auto ended = [&](size_t i) { return outcomes[i].fatal.has_value(); };
  if (!std::ranges::all_of(order, ended)) std::erase_if(order, ended);
  const auto lost = [&](size_t i) {
    return outcomes[i].mean_loss.value_or(outcomes[i].mean_energy_lost);
  };
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    return std::pair(outcomes[a].skipped_steps, lost(a)) <
           std::pair(outcomes[b].skipped_steps, lost(b));
  });
  std::vector<size_t> front;
  for (const size_t i : order) {
    if (front.empty() || lost(i) < lost(front.back())) front.push_back(i);
  }
  return front;
}

bool Tied(const SweepOutcome& a, const SweepOutcome& b, RankBy by) {
  return TieKey(a, by) == TieKey(b, by);
}

}  // namespace dlsim::sim
