// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/tied_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "dlsim/error.h"
#include "sim/base/number.h"
#include "sim/base/quantity.h"

namespace dlsim::sim {
namespace {

constexpr size_t kMostRanges = 3;  // in a cell

std::optional<double> NumberOf(const std::string& text) {
  try {
    return ParseNumber(text, "");
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

// Runs whose values are all combinations of these places, one list for each key.
struct TieMerger::Box {
  std::vector<std::vector<size_t>> places;
  size_t first = 0;  // the place of its best run among the tied
  size_t count = 1;
};

TieMerger::TieMerger(const SweepResult& result)
    : result_(result), keys_(AxisKeys(result.setup.grid)) {
  for (const GridPoint& point : result.plan.points) {
    std::vector<Domain>& domains = domains_[point.policy];
    domains.resize(keys_.size());
    const std::vector<std::string> values = ValuesAt(result.setup.grid, point);
    for (size_t k = 0; k < keys_.size(); ++k) {
      if (domains[k].places.emplace(values[k], 0).second) domains[k].values.push_back(values[k]);
    }
  }
  for (auto& [policy, domains] : domains_) {
    for (Domain& domain : domains) {
      domain.numbers = std::ranges::all_of(
          domain.values, [](const std::string& value) { return NumberOf(value).has_value(); });
      if (domain.numbers) std::ranges::stable_sort(domain.values, {}, NumberOf);
      for (size_t i = 0; i < domain.values.size(); ++i) domain.places[domain.values[i]] = i;
    }
  }
}

std::vector<TiedRuns> TieMerger::Merge(std::span<const size_t> tied) const {
  std::vector<std::pair<size_t, std::vector<size_t>>> alike;  // with the place of the first
  std::map<std::tuple<size_t, size_t, const PolicyInfo*>, size_t> index;
  for (size_t i = 0; i < tied.size(); ++i) {
    const GridPoint& point = result_.plan.points[tied[i]];
    const auto [place, added] =
        index.try_emplace({point.format, point.rounding, point.policy}, alike.size());
    if (added) alike.emplace_back(i, std::vector<size_t>());
    alike[place->second].second.push_back(tied[i]);
  }
  std::vector<TiedRuns> rows;
  for (const auto& [first, runs] : alike) {
    for (TiedRuns& row : MergeAlike(runs)) rows.push_back(std::move(row));
  }
  return rows;
}

// Key by key, boxes that differ in its places only become one.
std::vector<TiedRuns> TieMerger::MergeAlike(std::span<const size_t> tied) const {
  const std::vector<Domain>& domains = domains_.at(result_.plan.points[tied.front()].policy);
  const auto values_of = [&](size_t run) {
    return ValuesAt(result_.setup.grid, result_.plan.points[run]);
  };
  std::vector<Box> boxes;
  for (size_t i = 0; i < tied.size(); ++i) {
    Box box = {.places = {}, .first = i};
    const std::vector<std::string> values = values_of(tied[i]);
    for (size_t k = 0; k < keys_.size(); ++k) {
      box.places.push_back({domains[k].places.at(values[k])});
    }
    boxes.push_back(std::move(box));
  }
  for (size_t k = 0; k < keys_.size(); ++k) {
    std::map<std::vector<std::vector<size_t>>, size_t> index;
    std::vector<Box> merged;
    for (Box& box : boxes) {
      std::vector<size_t> places = std::exchange(box.places[k], {});
      const auto [place, added] = index.try_emplace(box.places, merged.size());
      if (added) merged.push_back({box.places, box.first, 0});
      Box& into = merged[place->second];
      into.count += box.count;
      into.places[k].insert(into.places[k].end(), places.begin(), places.end());
    }
    // What is compared next must not depend on the rank.
    for (Box& box : merged) {
      std::vector<size_t>& places = box.places[k];
      std::ranges::sort(places);
      places.erase(std::unique(places.begin(), places.end()), places.end());
    }
    boxes = std::move(merged);
  }
  std::vector<TiedRuns> rows;
  for (Box& box : boxes) {
    TiedRuns row = {tied[box.first], box.count, {}};
    const std::vector<std::string> best = values_of(row.best);
    for (size_t k = 0; k < keys_.size(); ++k) {
      const size_t place = domains[k].places.at(best[k]);
      row.values.push_back(TextOf(domains[k], keys_[k], box.places[k], place));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string TieMerger::TextOf(const Domain& domain, const std::string& key,
                              std::span<const size_t> places, size_t best) const {
  const auto text_at = [&](size_t place) {
    return Printable(ParameterText(key, domain.values[place]));
  };
  std::string text;
  size_t ranges = 0;
  for (size_t i = 0; i < places.size() && ranges <= kMostRanges; ++ranges) {
    size_t last = i;
    while (domain.numbers && last + 1 < places.size() && places[last + 1] == places[last] + 1) {
      ++last;
    }
    if (last < i + 2) last = i;  // two neighbors are no range
    if (ranges > 0) text += ", ";
    text += ranges == kMostRanges ? "..." : text_at(places[i]);
    if (last > i && ranges < kMostRanges) text += " to " + text_at(places[last]);
    i = last + 1;
  }
  return places.size() == 1 ? text : fmt::format("{} ({})", text, text_at(best));
}

}  // namespace dlsim::sim
