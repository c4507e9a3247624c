// SPDX-License-Identifier: Apache-2.0
#include "sim/diff/diff.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "dlsim/measure.h"
#include "src/measure/measure_chunk.h"
#include "src/measure/step_blocks.h"

namespace dlsim::sim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// `part` of `whole`: nothing of nothing is `of_nothing`.
double Ratio(double part, double whole, double of_nothing) {
  if (whole != 0) return part / whole;
  return part == 0 ? of_nothing : kInfinity;
}

using Place = std::pair<size_t, size_t>;  // in a and in b

// Adds what does not match to `step`, and an entry for what does. Micro-steps may have activations
// of other lengths than that of the shape: `elements_a` and `elements_b` tell.
std::vector<Place> Match(const std::vector<TensorRef>& a, const std::vector<TensorRef>& b,
                         const std::function<uint64_t(size_t)>& elements_a,
                         const std::function<uint64_t(size_t)>& elements_b, ComparedStep& step) {
  std::map<std::string_view, size_t> of_b;
  for (size_t k = 0; k < b.size(); ++k) {
    if (IsGradient(b[k]->role)) of_b.emplace(b[k]->name, k);
  }
  std::vector<Place> places;
  for (size_t i = 0; i < a.size() && IsGradient(a[i]->role); ++i) {
    const auto found = of_b.find(a[i]->name);
    if (found == of_b.end()) {
      step.unmatched.push_back({a[i]->name, Mismatch::kOnlyInA, a[i]->shape, {}});
      continue;
    }
    const size_t k = found->second;
    if (a[i]->shape != b[k]->shape || elements_a(i) != elements_b(k)) {
      step.unmatched.push_back({a[i]->name, Mismatch::kShape, a[i]->shape, b[k]->shape});
    } else {
      places.emplace_back(i, k);
      step.tensors.push_back({.name = a[i]->name, .role = a[i]->role, .elements = elements_a(i)});
    }
    of_b.erase(found);
  }
  for (const TensorRef& tensor : b) {
    if (!of_b.contains(tensor->name)) continue;
    step.unmatched.push_back({tensor->name, Mismatch::kOnlyInB, {}, tensor->shape});
  }
  return places;
}

// Completes a difference by what values and tables have in common.
void SetDifference(double difference, TensorDifference& into) {
  into.figures[kNormRatio] = Ratio(into.norm_b, into.norm_a, 1);
  into.figures[kDifference] = into.nonfinite_differences > 0 ? kInfinity : difference;
}

// Sums over the elements of a and b that are finite in both, in the order of measure.h: the same
// digits for any number of threads.
struct PairSums {
  uint64_t nonfinite_differences = 0;
  double squares_a = 0, squares_b = 0, product = 0;
  double squares_of_difference = 0;  // of b - a

  PairSums& operator+=(const PairSums& later) {
    nonfinite_differences += later.nonfinite_differences;
    squares_a += later.squares_a;
    squares_b += later.squares_b;
    product += later.product;
    squares_of_difference += later.squares_of_difference;
    return *this;
  }
};

bool IsFiniteInBoth(float a, float b) { return std::isfinite(a) && std::isfinite(b); }

uint64_t NonfiniteDifferences(std::span<const float> a, std::span<const float> b) {
  uint64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool alike = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
    count += !IsFiniteInBoth(a[i], b[i]) && !alike;
  }
  return count;
}

// Compares at most kChunkElements.
PairSums CompareChunk(std::span<const float> a, std::span<const float> b) {
  SumLanes squares_a{}, squares_b{}, product{}, squares_of_difference{};
  size_t nonfinite = 0;
  ForEachLane(a.size(), [&](size_t i, size_t lane) {
    const bool finite = IsFiniteInBoth(a[i], b[i]);
    const double of_a = finite ? double{a[i]} : 0, of_b = finite ? double{b[i]} : 0;
    const double difference = of_b - of_a;
    squares_a[lane] += of_a * of_a;
    squares_b[lane] += of_b * of_b;
    product[lane] += of_a * of_b;
    squares_of_difference[lane] += difference * difference;
    nonfinite += !finite;
  });
  return {nonfinite == 0 ? 0 : NonfiniteDifferences(a, b), AddLanes(squares_a), AddLanes(squares_b),
          AddLanes(product), AddLanes(squares_of_difference)};
}

// Returns the sum of some of the recordings of a block.
std::span<const float> SumOf(BlockLoader& loader, size_t first, size_t count, size_t elements,
                             std::vector<float>& sum) {
  if (count == 1 && loader.Values(first).size() == elements) return loader.Values(first);
  sum.assign(elements, 0.0f);
  for (size_t part = first; part < first + count; ++part) {
    const std::span<const float> values = loader.Values(part);
    for (size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

// `sources` have the recordings of a, then those of b.
std::vector<PairSums> CompareValues(const std::vector<TensorSources>& sources,
                                    std::span<const size_t> recordings_of_a) {
  const auto compare = [&](const Block& block, BlockLoader& loader) {
    std::vector<float> sum_a, sum_b;
    const size_t of_a = recordings_of_a[block.tensor];
    const size_t of_b = sources[block.tensor].recordings.size() - of_a;
    const std::span<const float> a = SumOf(loader, 0, of_a, block.count, sum_a);
    const std::span<const float> b = SumOf(loader, of_a, of_b, block.count, sum_b);
    PairSums sums;
    for (size_t begin = 0; begin < block.count; begin += kChunkElements) {
      const size_t count = std::min(kChunkElements, block.count - begin);
      sums += CompareChunk(a.subspan(begin, count), b.subspan(begin, count));
    }
    return sums;
  };
  return AddBlocks(sources, Accumulation::kQuantizeThenSum, PairSums(), compare);
}

void SetFigures(const PairSums& sums, TensorDifference& into) {
  into.nonfinite_differences = sums.nonfinite_differences;
  into.norm_a = std::sqrt(sums.squares_a);
  into.norm_b = std::sqrt(sums.squares_b);
  const double relative = Ratio(std::sqrt(sums.squares_of_difference), into.norm_a, 0);
  const double norms = std::sqrt(sums.squares_a * sums.squares_b);
  const bool both_zero = sums.squares_a == 0 && sums.squares_b == 0;
  into.figures[kRelativeDifference] = relative;
  into.figures[kCosine] =
      norms == 0 ? (both_zero ? 1 : 0) : std::clamp(sums.product / norms, -1.0, 1.0);
  SetDifference(relative, into);
}

// Counts of nonzero magnitudes by the biased exponent of float32: the first has all subnormals.
using Binades = std::array<uint64_t, 255>;

Binades BinadesOf(const TensorTable& table) {
  Binades binades{};
  for (const Binade& binade : table.binades) {
    binades[static_cast<size_t>(std::max(binade.exponent, -127) + 127)] += binade.count;
  }
  for (const float value : table.values) {
    ++binades[std::bit_cast<uint32_t>(std::fabs(value)) >> 23];
  }
  return binades;
}

// In one dimension the earth mover's distance is the area between the distribution functions.
double Distance(const TensorTable& a, const TensorTable& b) {
  const uint64_t count_a = a.nonzero_finite(), count_b = b.nonzero_finite();
  if (count_a == 0 || count_b == 0) return count_a == count_b ? 0 : kInfinity;
  const Binades of_a = BinadesOf(a), of_b = BinadesOf(b);
  uint64_t below_a = 0, below_b = 0;
  double distance = 0;
  for (size_t i = 0; i < of_a.size(); ++i) {
    below_a += of_a[i];
    below_b += of_b[i];
    distance += std::fabs(static_cast<double>(below_a) / static_cast<double>(count_a) -
                          static_cast<double>(below_b) / static_cast<double>(count_b));
  }
  return distance;
}

double ShareOfZeros(const TensorTable& table) {
  return Ratio(static_cast<double>(table.zeros), static_cast<double>(table.elements), 0);
}

uint64_t Apart(uint64_t a, uint64_t b) { return a > b ? a - b : b - a; }

void SetFigures(const TensorTable& a, const TensorTable& b, TensorDifference& into) {
  into.nonfinite_differences = Apart(a.nan, b.nan) + Apart(a.inf, b.inf);
  into.norm_a = std::sqrt(a.sum_of_squares);
  into.norm_b = std::sqrt(b.sum_of_squares);
  const double distance = Distance(a, b), zeros = std::fabs(ShareOfZeros(a) - ShareOfZeros(b));
  into.figures[kHistogramDistance] = distance;
  into.figures[kZeroDifference] = zeros;
  SetDifference(std::max({std::fabs(Ratio(into.norm_b, into.norm_a, 1) - 1), distance, zeros}),
                into);
}

}  // namespace

ComparedStep CompareSteps(const TraceStep& a, const TraceStep& b) {
  ComparedStep step = {a.step, b.step, {}, {}};
  const std::vector<TensorSources> of_a = CollectTensors(a, Pass::kBackward),
                                   of_b = CollectTensors(b, Pass::kBackward);
  std::vector<TensorSources> joined;
  std::vector<size_t> recordings_of_a;
  const std::vector<Place> places = Match(
      DescribeTensors(a), DescribeTensors(b), [&](size_t i) { return of_a[i].elements; },
      [&](size_t k) { return of_b[k].elements; }, step);
  for (const auto& [i, k] : places) {
    TensorSources& both = joined.emplace_back(of_a[i]);
    recordings_of_a.push_back(both.recordings.size());
    both.recordings.insert(both.recordings.end(), of_b[k].recordings.begin(),
                           of_b[k].recordings.end());
  }
  const std::vector<PairSums> sums = CompareValues(joined, recordings_of_a);
  for (size_t t = 0; t < sums.size(); ++t) SetFigures(sums[t], step.tensors[t]);
  return step;
}

ComparedStep CompareSteps(const StepTables& a, const StepTables& b) {
  ComparedStep step = {a.step, b.step, {}, {}};
  const auto elements_of = [](const StepTables& tables) {
    return [&](size_t t) {
      uint64_t most = 0;  // a micro-step may lack the tensor
      for (const auto& part : tables.parts) most = std::max(most, part[t].elements);
      return most;
    };
  };
  const std::vector<Place> places =
      Match(a.tensors, b.tensors, elements_of(a), elements_of(b), step);
  for (size_t t = 0; t < places.size(); ++t) {
    SetFigures(a.Sum(places[t].first), b.Sum(places[t].second), step.tensors[t]);
  }
  return step;
}

AlignedSteps AlignSteps(std::span<const int64_t> a, std::span<const int64_t> b,
                        Alignment alignment) {
  AlignedSteps aligned;
  const bool by_index = alignment == Alignment::kIndex;
  size_t i = 0, k = 0;
  while (i < a.size() || k < b.size()) {
    const bool both = i < a.size() && k < b.size();
    if (both && (by_index || a[i] == b[k])) {
      aligned.pairs.emplace_back(i++, k++);
    } else if (both ? a[i] < b[k] : i < a.size()) {
      aligned.only_a.push_back(a[i++]);
    } else {
      aligned.only_b.push_back(b[k++]);
    }
  }
  return aligned;
}

}  // namespace dlsim::sim
