// SPDX-License-Identifier: Apache-2.0
#include "sim/studies/rank_gradients.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "dlsim/error.h"
#include "dlsim/measure.h"
#include "dlsim/measure_step.h"
#include "dlsim/philox.h"
#include "src/measure/load_floats.h"

namespace dlsim::sim {
namespace {

// Steps that are taken as ranks of one reduction.
constexpr size_t kMostSteps = 64;

// The recordings that make one rank's gradient.
using RankRecordings = std::vector<const Recording*>;

RankSource SourceOf(const TraceStep& step) {
  if (step.recordings.front().ranks) return RankSource::kRanks;
  return step.recordings.size() > 1 ? RankSource::kMicroSteps : RankSource::kSteps;
}

// The ranks of a step; several of its micro-steps are one gradient, but where they are the ranks.
std::vector<RankRecordings> RanksOf(const TraceStep& step, RankSource source) {
  std::vector<RankRecordings> ranks;
  for (const Recording& recording : step.recordings) {
    if (source == RankSource::kMicroSteps) {
      ranks.push_back({&recording});
      continue;
    }
    const bool several = source == RankSource::kRanks && recording.ranks;
    const size_t count = several ? recording.ranks->size() : 1;
    ranks.resize(std::max(ranks.size(), count));
    for (size_t r = 0; r < count; ++r) {
      ranks[r].push_back(several ? &(*recording.ranks)[r] : &recording);
    }
  }
  return ranks;
}

void AddRank(const RankRecordings& recordings, size_t rank, std::map<std::string, size_t>& index,
             RankGroup& group) {
  for (const Recording* recording : recordings) {
    for (const TraceTensor& tensor : recording->tensors) {
      if (tensor.role != Role::kGrad) continue;
      const auto [entry, is_new] = index.try_emplace(tensor.name, group.tensors.size());
      if (is_new) group.tensors.push_back({tensor.name, tensor.elements, {}});
      RankTensor& all = group.tensors[entry->second];
      if (all.elements != tensor.elements) {
        throw InputError(Printable(recording->place), "size of " + Quoted(tensor.name) + " differs",
                         std::to_string(all.elements) + " elements",
                         std::to_string(tensor.elements));
      }
      all.ranks.resize(rank + 1);
      all.ranks[rank].push_back({&tensor, recording->CarriedScale(tensor.role)});
    }
  }
}

RankGroup GroupOf(std::vector<TraceStep> steps, RankSource source) {
  RankGroup group;
  group.step = steps.front().step;
  group.steps = std::move(steps);
  std::map<std::string, size_t> index;
  for (const TraceStep& step : group.steps) {
    for (const RankRecordings& recordings : RanksOf(step, source)) {
      AddRank(recordings, group.ranks++, index, group);
    }
  }
  for (RankTensor& tensor : group.tensors) {
    tensor.ranks.resize(group.ranks);
    if (source == RankSource::kMicroSteps) tensor.factor = static_cast<float>(group.ranks);
  }
  return group;
}

// Fills `out` with a rank's values from `begin` on.
void Load(const RankTensor& tensor, size_t rank, uint64_t begin, std::span<float> out) {
  std::ranges::fill(out, 0.0f);
  std::array<std::byte, kChunkElements * sizeof(double)> bytes;
  std::array<float, kChunkElements> values;
  for (const RankTensor::Part& part : tensor.ranks[rank]) {
    const size_t size = DTypeSize(part.tensor->dtype);
    const std::byte* const from =
        part.tensor->Bytes(begin * size, std::span(bytes).first(out.size() * size));
    LoadFloats(part.tensor->dtype, from, part.grad_scale, std::span(values).first(out.size()));
    for (size_t i = 0; i < out.size(); ++i) out[i] += values[i];
  }
  for (float& value : out) value *= tensor.factor;
}

// The sums over ranks of the elements of one chunk.
struct ChunkSums {
  std::vector<double> sums, magnitudes;

  explicit ChunkSums(size_t size) : sums(size), magnitudes(size) {}

  // Returns whether all values are finite.
  bool Add(std::span<const float> values, RankSample& sample) {
    bool finite = true;
    for (size_t i = 0; i < values.size(); ++i) {
      const double value = static_cast<double>(values[i]);
      sums[i] += value;
      magnitudes[i] += std::fabs(value);
      sample.max_value = std::max(sample.max_value, std::fabs(value));
      finite = finite && std::isfinite(value);
    }
    return finite;
  }
  void Finish(RankSample& sample) const {
    for (size_t i = 0; i < sums.size(); ++i) {
      sample.max_sum = std::max(sample.max_sum, std::fabs(sums[i]));
      sample.max_magnitudes = std::max(sample.max_magnitudes, magnitudes[i]);
    }
  }
};

RankSample EmptySample(const RankTensor& tensor, size_t ranks, uint64_t count) {
  RankSample sample;
  const uint64_t taken = std::min(count, tensor.elements);
  for (uint64_t i = 0; i < taken; ++i) {
    const double place = static_cast<double>(i) / static_cast<double>(taken);
    sample.at.push_back(taken == tensor.elements
                            ? i
                            : static_cast<uint64_t>(place * static_cast<double>(tensor.elements)));
    sample.places.push_back(static_cast<double>(sample.at.back()) /
                            static_cast<double>(tensor.elements));
  }
  sample.values = {ranks, sample.at.size(), std::vector<float>(ranks * sample.at.size())};
  return sample;
}

// The sample of some ranks; `finite` tells which of them are.
RankSample Read(const RankTensor& tensor, const std::vector<size_t>& ranks, uint64_t count,
                std::vector<bool>& finite) {
  RankSample sample = EmptySample(tensor, ranks.size(), count);
  std::vector<float> chunk(kChunkElements);
  size_t next = 0;  // of the sample
  for (uint64_t begin = 0; begin < tensor.elements; begin += kChunkElements) {
    const size_t size =
        static_cast<size_t>(std::min<uint64_t>(kChunkElements, tensor.elements - begin));
    const std::span<float> values = std::span(chunk).first(size);
    ChunkSums sums(size);
    size_t last = next;
    while (last < sample.at.size() && sample.at[last] < begin + size) ++last;
    for (size_t r = 0; r < ranks.size(); ++r) {
      Load(tensor, ranks[r], begin, values);
      if (!sums.Add(values, sample)) finite[r] = false;
      for (size_t i = next; i < last; ++i) {
        sample.values.Row(r)[i] = values[static_cast<size_t>(sample.at[i] - begin)];
      }
    }
    next = last;
    sums.Finish(sample);
  }
  return sample;
}

// A recorded rank, and a number from 0 to 2^32 that is independent of it.
struct Drawn {
  size_t rank = 0;
  double chance = 0;

  Drawn(const RandomStream& random, uint64_t index, size_t ranks) {
    const uint64_t drawn = uint64_t{RandomBits(random, index)} * ranks;
    rank = static_cast<size_t>(drawn >> 32);
    chance = static_cast<double>(static_cast<uint32_t>(drawn));
  }
};

// The means of an element over the first ranks, without zeros: a rank that did not use a row of an
// embedding says nothing about those that did.
std::vector<double> MeansOfNonzero(const RankValues& values, size_t ranks) {
  std::vector<double> means(values.elements);
  for (size_t i = 0; i < values.elements; ++i) {
    double sum = 0, count = 0;
    for (size_t r = 0; r < ranks; ++r) {
      const double value = static_cast<double>(values.Row(r)[i]);
      sum += value;
      count += value != 0;
    }
    means[i] = count > 0 ? sum / count : 0;
  }
  return means;
}

// A value between and around two of an element: with few recorded ranks, values that come again and
// again would be rounded the same way each time, and their errors would add up. Deviations from the
// mean have weights whose squares add up to 1, which keeps their spread; `part` is from -1 to 1.
double Mixed(float one, float other, double mean, double part) {
  if (one == 0) return 0;
  const double deviation = static_cast<double>(one) - mean;
  const double second = other == 0 ? deviation : static_cast<double>(other) - mean;
  const double square = part * part;
  return mean + ((1 - square) * deviation + 2 * part * second) / (1 + square);
}

}  // namespace

RankGroups VisitRankGroups(const TraceReader& trace,
                           const std::function<void(const RankGroup&)>& visit,
                           const std::function<void(size_t)>& on_step) {
  RankGroups groups;
  std::vector<TraceStep> steps;
  const auto flush = [&] {
    if (steps.empty()) return;
    const size_t count = steps.size();
    const RankGroup group = GroupOf(std::move(steps), groups.source);
    steps.clear();
    if (group.ranks < 2) {
      groups.left_out += count;
      return;
    }
    groups.fewest_ranks =
        groups.groups == 0 ? group.ranks : std::min(groups.fewest_ranks, group.ranks);
    groups.most_ranks = std::max(groups.most_ranks, group.ranks);
    ++groups.groups;
    visit(group);
  };
  for (size_t i = 0; i < trace.step_count(); ++i) {
    steps.push_back(trace.Load(i));
    if (i == 0) groups.source = SourceOf(steps.front());
    if (groups.source != RankSource::kSteps || steps.size() == kMostSteps) flush();
    on_step(i + 1);
  }
  flush();
  return groups;
}

RankSample SampleOf(const RankTensor& tensor, size_t most_ranks, uint64_t count) {
  std::vector<size_t> ranks(tensor.ranks.size());
  std::iota(ranks.begin(), ranks.end(), size_t{0});
  ranks.resize(std::min(most_ranks, ranks.size()));
  std::vector<bool> finite(ranks.size(), true);
  RankSample sample = Read(tensor, ranks, count, finite);
  const uint64_t nonfinite = static_cast<uint64_t>(std::ranges::count(finite, false));
  if (nonfinite == 0) return sample;
  std::erase_if(ranks, [&](size_t r) { return !finite[r]; });
  sample = {};
  if (ranks.size() > 1) sample = Read(tensor, ranks, count, finite);
  sample.nonfinite = nonfinite;
  return sample;
}

double TrueShareOfMean(const RankValues& recorded) {
  const double count = static_cast<double>(recorded.ranks);
  double means = 0, variances = 0;  // of the mean, summed over elements
  for (size_t i = 0; i < recorded.elements; ++i) {
    double sum = 0, squares = 0;
    for (size_t r = 0; r < recorded.ranks; ++r) {
      const double value = static_cast<double>(recorded.Row(r)[i]);
      sum += value;
      squares += value * value;
    }
    means += sum * sum / (count * count);
    variances += std::max(0.0, squares - sum * sum / count) / (count * (count - 1));
  }
  // By chance alone the logarithm of an F statistic has about this standard deviation.
  const double elements = static_cast<double>(recorded.elements);
  const double chance = std::sqrt(2 / elements * count / (count - 1));
  const bool true_in_part = std::log(means / variances) > 2 * chance;
  return true_in_part ? std::sqrt(1 - variances / means) : 0;
}

RankValues ValuesOfRanks(const RankSample& sample, size_t ranks, const std::string& name,
                         int64_t step) {
  const size_t recorded = std::min(ranks, sample.values.ranks), elements = sample.values.elements;
  RankValues all = {ranks, elements, std::vector<float>(ranks * elements)};
  std::copy_n(sample.values.values.begin(), recorded * elements, all.values.begin());
  if (recorded == ranks) return all;
  const double changed = (1 - TrueShareOfMean(sample.values)) / 2 * 0x1p32;
  const std::vector<double> means = MeansOfNonzero(all, recorded);
  for (size_t r = recorded; r < ranks; ++r) {
    const uint32_t stream = StreamOf(name, step, static_cast<int64_t>(r));
    for (size_t i = 0; i < elements; ++i) {
      const Drawn one({0, stream}, sample.at[i], recorded),
          other({1, stream}, sample.at[i], recorded);
      const double mixed = Mixed(all.Row(one.rank)[i], all.Row(other.rank)[i], means[i],
                                 2 * other.chance * 0x1p-32 - 1);
      const double value = std::clamp(mixed, -sample.max_value, sample.max_value);
      all.Row(r)[i] = static_cast<float>(one.chance < changed ? -value : value);
    }
  }
  return all;
}

}  // namespace dlsim::sim
