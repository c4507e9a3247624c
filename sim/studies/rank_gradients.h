// SPDX-License-Identifier: Apache-2.0
// The gradients that ranks contribute to one reduction, as a trace tells them, and a sample of
// their elements.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/trace.h"
#include "sim/studies/rank_sum.h"

namespace dlsim::sim {

// What stands for the ranks.
enum class RankSource : uint8_t { kRanks, kMicroSteps, kSteps };

constexpr auto EnumNames(RankSource) {
  return std::to_array<EnumName<RankSource>>({{RankSource::kRanks, "ranks"},
                                              {RankSource::kMicroSteps, "micro-steps"},
                                              {RankSource::kSteps, "steps"}});
}

// A gradient of one rank is the sum of these tensors, times a factor.
struct RankTensor {
  std::string name;
  uint64_t elements = 0;
  struct Part {
    const TraceTensor* tensor = nullptr;
    float grad_scale = 1;
  };
  std::vector<std::vector<Part>> ranks;  // a rank without the tensor has no parts: zeros
  float factor = 1;                      // micro-steps carry the division by their number
};

// Gradients that are reduced together: those of one step, or of up to 64 steps taken as ranks.
struct RankGroup {
  int64_t step = 0;  // the first
  size_t ranks = 0;
  std::vector<RankTensor> tensors;  // parameter gradients, in the order in which they come first
  std::vector<TraceStep> steps;     // hold what `tensors` point to
};

// What the groups of a trace are.
struct RankGroups {
  RankSource source = RankSource::kSteps;
  uint64_t groups = 0;
  uint64_t left_out = 0;                    // steps with a single rank or micro-step
  size_t fewest_ranks = 0, most_ranks = 0;  // of a group
};

// Calls visit for each group, holding one at a time, and on_step with the number of steps that were
// read. Throws InputError if no group has two ranks, and where a tensor's size differs.
RankGroups VisitRankGroups(const TraceReader& trace,
                           const std::function<void(const RankGroup&)>& visit,
                           const std::function<void(size_t)>& on_step);

// Some elements of a tensor, and what all of its elements tell.
struct RankSample {
  RankValues values;           // of the recorded ranks, at most as many as were asked for
  std::vector<double> places;  // of the elements in the tensor, 0 to 1, ascending
  std::vector<uint64_t> at;    // their indices
  double max_value = 0;        // largest magnitude of a rank's element
  double max_sum = 0;          // largest magnitude of an element's sum over these ranks
  double max_magnitudes = 0;   // largest sum of magnitudes
  uint64_t nonfinite = 0;      // ranks left out, whose gradient of the tensor is not finite
};

// Reads a tensor and takes every element of up to `count`, or as many at equal distances; none if
// fewer than two ranks have it finite.
RankSample SampleOf(const RankTensor& tensor, size_t most_ranks, uint64_t count);

// Returns how much of the mean over recorded ranks is theirs in truth: a root mean square over
// elements, 0 to 1. The rest is what so few ranks have in common by chance.
double TrueShareOfMean(const RankValues& recorded);

// Returns the values of the first `ranks` ranks. Beyond those recorded each element of a rank is
// mixed from those of two recorded ones, drawn for every element and rank, at most as large as
// the largest one of the tensor; zeros stay as frequent as they are. Its sign is changed as often
// as makes that share of the mean: sums are over elements, so that this keeps an element's mean and
// spread over ranks.
RankValues ValuesOfRanks(const RankSample& sample, size_t ranks, const std::string& name,
                         int64_t step);

}  // namespace dlsim::sim
