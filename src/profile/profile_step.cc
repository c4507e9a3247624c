// SPDX-License-Identifier: Apache-2.0
// Profiles one step of a trace.
#include <algorithm>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <iterator>
#include <optional>
#include <utility>

#include "dlsim/profile.h"
#include "dlsim/scaled_step.h"
#include "src/base/check.h"
#include "src/base/parallel_side_task.h"
#include "src/device/compute_device.h"
#include "src/histogram/histogram_sums.h"
#include "src/measure/chunk_loader.h"
#include "src/measure/step_blocks.h"
#include "src/measure/step_channels.h"
#include "src/trace/listed_names.h"

namespace dlsim {
namespace {

// Elements that one thread counts at once, fewer where that would leave other threads without work;
// taking the sums of a tensor costs as much as some thousands of them.
constexpr size_t kMostTaskElements = size_t{1} << 18, kFewestTaskElements = size_t{1} << 14;
constexpr size_t kTasksPerWave = 16;

// What consecutive blocks of one tensor hold in one part.
struct Piece {
  size_t tensor = 0, part = 0;
  HistogramSums sums;
};

// Cuts consecutive blocks, whose parts hold `elements` elements in all, into tasks.
std::vector<std::span<const Block>> CutIntoTasks(std::span<const Block> blocks, size_t parts,
                                                 size_t elements) {
  const size_t enough =
      std::clamp(elements / kTasksPerWave, kFewestTaskElements, kMostTaskElements);
  std::vector<std::span<const Block>> tasks;
  while (!blocks.empty()) {
    size_t count = 0, of_task = 0;
    while (count < blocks.size() && of_task < enough) of_task += blocks[count++].count * parts;
    tasks.push_back(blocks.first(count));
    blocks = blocks.subspan(count);
  }
  return tasks;
}

// Counts consecutive blocks, each part with a counter of its own.
std::vector<Piece> CountTask(const std::vector<TensorSources>& tensors,
                             std::span<const Block> blocks, size_t parts, Accumulation accumulation,
                             const HistogramEdges& edges, StepChannels* channels) {
  std::vector<Piece> pieces;
  std::deque<HistogramCounter> counters;
  for (size_t part = 0; part < parts; ++part) counters.emplace_back(edges);
  for (size_t b = 0; b < blocks.size(); ++b) {
    const bool counts_channels = channels != nullptr && channels->Counts(blocks[b].tensor);
    ChunkLoader loader(tensors[blocks[b].tensor], blocks[b], accumulation,
                       counts_channels ? ChunkLoader::Chunks::kKeep : ChunkLoader::Chunks::kDrop);
    for (size_t part = 0; part < parts; ++part) {
      if (!loader.Has(part)) continue;
      for (size_t begin = 0; begin < blocks[b].count; begin += kChunkElements) {
        counters[part].Add(loader.Load(part, begin));
      }
    }
    if (counts_channels) channels->Add(blocks[b], loader);
    if (b + 1 < blocks.size() && blocks[b + 1].tensor == blocks[b].tensor) continue;
    for (size_t part = 0; part < parts; ++part) {
      pieces.push_back({blocks[b].tensor, part, TakeSums(counters[part])});
    }
  }
  return pieces;
}

// How many elements are looked at in the time in which one is counted, or a bin becomes a number.
constexpr uint64_t kLooksPerCount = 4, kLooksPerChannels = 4;
constexpr uint64_t kLooksPerBin = 10;

// Adds to the sums of every tensor, [tensor * parts + part], and to `channels`, if any.
void CountOnCpu(const StepWork& work, const HistogramEdges& edges, std::span<HistogramSums> sums,
                StepChannels* channels) {
  const StepOptions& options = *work.options;
  const std::vector<TensorSources>& tensors = *work.tensors;
  const size_t parts = work.micro_steps.size();
  const auto count = [&](std::span<const Block> wave) {
    size_t elements = 0;  // in all parts
    for (const Block& block : wave) elements += block.count * parts;
    const std::vector<std::span<const Block>> tasks = CutIntoTasks(wave, parts, elements);
    std::vector<std::vector<Piece>> pieces(tasks.size());
    ParallelForWithSideTask(
        tasks.size(),
        [&](size_t task) {
          pieces[task] =
              CountTask(tensors, tasks[task], parts, options.accumulation, edges, channels);
        },
        elements * (kLooksPerCount + (channels == nullptr ? 0 : kLooksPerChannels)));
    for (const std::vector<Piece>& of_task : pieces) {
      for (const Piece& piece : of_task) sums[piece.tensor * parts + piece.part].Merge(piece.sums);
    }
  };
  uint64_t largest = 0;
  for (const TensorSources& tensor : tensors) largest = std::max(largest, tensor.elements);
  ForEachWave(tensors, count,
              {options.memory_bytes, parts * HistogramSums::MostBytes(largest, edges)});
}

// What lies on a device is counted there, part by part: sums of recordings are made on the host.
void CheckWhereTensorsAre(const StepWork& work) {
  const bool by_part = work.micro_steps.size() == work.step->recordings.size();
  for (const TensorSources& sources : *work.tensors) {
    for (const Source& source : sources.recordings) {
      if (source.tensor == nullptr || source.tensor->device < 0) continue;
      DLSIM_CHECK(work.options->device != nullptr && by_part);
    }
  }
}

ProfileTensor DescribeTensor(const TensorSources& sources) {
  const auto recorded = std::find_if(sources.recordings.begin(), sources.recordings.end(),
                                     [](const Source& source) { return source.tensor != nullptr; });
  return {sources.header.name, sources.header.role, recorded->tensor->dtype,
          recorded->tensor->shape};
}

// Adds histograms, bin by bin.
class HistogramTotal {
 public:
  void Add(const Histogram& histogram) {
    total_.elements += histogram.elements;
    total_.zeros += histogram.zeros;
    total_.nan += histogram.nan;
    total_.inf += histogram.inf;
    total_.sum += histogram.sum;
    for (size_t s = 0; s < bins_.size(); ++s) {
      const SignHistogram& from = histogram.signs[s];
      total_.signs[s].largest = std::max(total_.signs[s].largest, from.largest);
      if (from.bins.empty()) continue;
      bins_[s].resize(std::max<size_t>(bins_[s].size(), from.bins.back().bin + size_t{1}));
      for (const HistogramBin& bin : from.bins) {
        bins_[s][bin.bin].count += bin.count;
        bins_[s][bin.bin].squares += bin.squares;
      }
    }
  }

  Histogram Take() {
    for (size_t s = 0; s < bins_.size(); ++s) {
      for (uint32_t b = 0; b < bins_[s].size(); ++b) {
        const HistogramBin& bin = bins_[s][b];
        if (bin.count > 0) total_.signs[s].bins.push_back({b, bin.count, bin.squares});
      }
    }
    return std::move(total_);
  }

 private:
  Histogram total_;
  std::array<std::vector<HistogramBin>, 2> bins_;  // by number
};

// Adds the tensors of one pass to a profile that knows its parts.
void AddPass(const TraceStep& step, Pass pass, const HistogramEdges& edges, StepOptions options,
             ProfileStep& profile) {
  const std::vector<TensorSources> tensors = CollectTensors(step, pass);
  if (tensors.empty()) return;
  // Micro-steps of the forward pass have no sum: all are counted, whatever becomes of gradients.
  if (pass == Pass::kForward) options.accumulation = Accumulation::kQuantizeThenSum;
  const std::vector<int64_t> micro_steps = PartNumbers(step, options.accumulation);
  const size_t counted = micro_steps.size(), parts = profile.micro_steps.size();
  std::vector<HistogramSums> sums(tensors.size() * counted);
  const StepWork work = {&step, &tensors, micro_steps, {}, &options};
  CheckWhereTensorsAre(work);
  if (options.device == nullptr) {
    std::optional<StepChannels> channels;
    if (options.channels) channels.emplace(tensors);
    CountOnCpu(work, edges, sums, channels ? &*channels : nullptr);
    if (channels) profile.channels = channels->Take();
  } else {
    RunOnDevice(work, *options.device->Count(work, edges, sums));
    if (options.channels) profile.channels = MeasureChannels(step, options.accumulation);
  }
  const size_t before = profile.tensors.size();
  for (const TensorSources& sources : tensors) profile.tensors.push_back(DescribeTensor(sources));
  for (std::vector<Histogram>& part : profile.histograms) part.resize(profile.tensors.size());
  ParallelFor(
      tensors.size(),
      [&](size_t t) {
        const std::span<HistogramSums> of_tensor = std::span(sums).subspan(t * counted, counted);
        for (size_t part = parts; part < counted; ++part) of_tensor[0].Merge(of_tensor[part]);
        for (size_t part = 0; part < parts; ++part) {
          profile.histograms[part][before + t] = of_tensor[part].ToHistogram(edges);
        }
      },
      tensors.size() * parts * edges.bin_count() * kLooksPerBin);
}

enum class Channels { kCounted, kLeftOut };

// Returns a caller's options for one part of its work: whether channels are counted depends on the
// part, whatever else the caller asks about the step.
StepOptions With(Channels channels, StepOptions options) {
  options.channels = channels == Channels::kCounted;
  return options;
}

// Returns the profile of a step without tensors.
ProfileStep EmptyProfile(const TraceStep& step, const StepOptions& options) {
  ProfileStep profile;
  profile.step = step.step;
  profile.micro_steps = PartNumbers(step, options.accumulation);
  profile.histograms.resize(profile.micro_steps.size());
  return profile;
}

}  // namespace

ProfileStep ProfileOf(const TraceStep& step, const HistogramEdges& edges,
                      const StepOptions& options) {
  ProfileStep profile = EmptyProfile(step, options);
  if (!step.recordings.empty()) profile.metadata = step.recordings.front().metadata;
  profile.metadata.erase(std::string(kHarmlessOverflowKey));
  if (const std::set<std::string> harmless = HarmlessOverflows(step, options); !harmless.empty()) {
    profile.metadata.emplace(kHarmlessOverflowKey, ListOf(harmless));
  }
  for (const Recording* file : RecordedFiles(step)) {
    const std::string name = std::filesystem::path(file->place).filename().string();
    profile.files.push_back({name, file->file_bytes});
  }
  AddPass(step, Pass::kBackward, edges, With(Channels::kCounted, options), profile);
  AddPass(step, Pass::kForward, edges, With(Channels::kLeftOut, options), profile);
  if (!options.scaled.empty()) profile.scaled = MeasureScaledStep(step, options.scaled);
  profile.channels.resize(profile.tensors.size());
  if (std::ranges::none_of(profile.channels, &ChannelCurves::known)) profile.channels.clear();
  return profile;
}

std::vector<ProfileTensor> DescribeTensors(const TraceStep& step) {
  std::vector<ProfileTensor> tensors;
  for (const Pass pass : {Pass::kBackward, Pass::kForward}) {
    std::ranges::transform(CollectTensors(step, pass), std::back_inserter(tensors), DescribeTensor);
  }
  return tensors;
}

ProfileTotals TotalsOf(const ProfileStep& step) {
  ProfileTotals totals;
  totals.step = step.step;
  for (const std::vector<Histogram>& of_part : step.histograms) {
    HistogramTotal gradients, activations;
    for (size_t t = 0; t < of_part.size(); ++t) {
      if (IsForward(step.tensors[t].role)) continue;
      (step.tensors[t].role == Role::kGrad ? gradients : activations).Add(of_part[t]);
    }
    totals.gradients.push_back(gradients.Take());
    totals.activations.push_back(activations.Take());
  }
  return totals;
}

ProfileTotals TotalsOf(const TraceStep& step, const HistogramEdges& edges,
                       const StepOptions& options) {
  ProfileStep profile = EmptyProfile(step, options);
  AddPass(step, Pass::kBackward, edges, With(Channels::kLeftOut, options), profile);
  return TotalsOf(profile);
}

}  // namespace dlsim
