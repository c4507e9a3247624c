// SPDX-License-Identifier: Apache-2.0
#include "dlsim/trace.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "dlsim/error.h"
#include "dlsim/measure.h"
#include "src/base/check.h"
#include "src/base/float_environment.h"
#include "src/measure/step_blocks.h"
#include "src/trace/layout.h"
#include "src/trace/recording.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

// Gradients of micro-steps and of ranks are added, so they must be of the same parameters.
// Activation gradients belong to their own batch and may differ. `first_name` is for messages.
void CheckSameGradients(const Recording& first, const std::string& first_name,
                        const Recording& other) {
  std::map<std::string_view, const TensorInfo*> expected;
  for (const TraceTensor& tensor : first.tensors) {
    if (tensor.info->role == Role::kGrad) expected.emplace(tensor.info->name, &*tensor.info);
  }
  for (const TraceTensor& tensor : other.tensors) {
    const auto& [name, role, dtype, shape] = *tensor.info;
    if (role != Role::kGrad) continue;
    const auto match = expected.find(name);
    if (match == expected.end()) {
      throw InputError(TensorPlace(other.place, name),
                       "is not in " + first_name + " of the same step");
    }
    if (match->second->shape != shape) {
      throw InputError(TensorPlace(other.place, name), "shape differs from " + first_name,
                       ShapeText(match->second->shape), ShapeText(shape));
    }
    expected.erase(match);
  }
  if (expected.empty()) return;
  throw InputError(TensorPlace(other.place, expected.begin()->first),
                   "is missing, but " + first_name + " has it");
}

// Loads the sum or the mean over the ranks.
void LoadReduced(const std::vector<Source>& ranks, RankReduction reduction, uint64_t begin,
                 std::span<float> out) {
  ranks.front().Load(begin, out);
  std::array<float, kChunkElements> buffer;
  const std::span<float> values = std::span(buffer).first(out.size());
  for (const Source& rank : std::span(ranks).subspan(1)) {
    rank.Load(begin, values);
    for (size_t i = 0; i < out.size(); ++i) out[i] += values[i];
  }
  if (reduction == RankReduction::kSum) return;
  const float count = static_cast<float>(ranks.size());
  for (float& value : out) value /= count;
}

// Loads values of the ranks one after another.
void LoadConcatenated(const std::vector<Source>& ranks, uint64_t begin, std::span<float> out) {
  for (const Source& rank : ranks) {
    const uint64_t elements = rank.tensor->elements;
    if (begin < elements) {
      const size_t count = static_cast<size_t>(std::min<uint64_t>(out.size(), elements - begin));
      rank.Load(begin, out.first(count));
      out = out.subspan(count);
      if (out.empty()) return;
    }
    begin -= std::min(begin, elements);
  }
}

// Reads float32 values that load(begin, values) gives chunk by chunk.
template <class LoadChunk>
std::shared_ptr<const ByteReader> SourceOf(LoadChunk load) {
  return std::make_shared<const ByteReader>(
      [load = std::move(load)](uint64_t offset, std::span<std::byte> out) {
        DLSIM_CHECK(offset % sizeof(float) == 0 && out.size() % sizeof(float) == 0);
        const DefaultFloatEnvironment environment;
        std::array<float, kChunkElements> chunk;
        while (!out.empty()) {
          const size_t count = std::min(chunk.size(), out.size() / sizeof(float));
          load(offset / sizeof(float), std::span(chunk).first(count));
          std::memcpy(out.data(), chunk.data(), count * sizeof(float));
          out = out.subspan(count * sizeof(float));
          offset += count * sizeof(float);
        }
      });
}

// Concatenates along the first axis where the others agree, or else without axes.
std::vector<uint64_t> ConcatenatedShape(const std::vector<Source>& ranks, uint64_t elements) {
  std::vector<uint64_t> shape = ranks.front().tensor->info->shape;
  uint64_t rows = 0;
  bool agree = !shape.empty();
  for (const Source& rank : ranks) {
    const std::vector<uint64_t>& other = rank.tensor->info->shape;
    agree = agree && other.size() == shape.size() &&
            std::equal(shape.begin() + 1, shape.end(), other.begin() + 1);
    if (agree) rows += other.front();
  }
  if (!agree) return {elements};
  shape.front() = rows;
  return shape;
}

// Returns the tensor of all ranks that have it; `owner` is what they point into.
TraceTensor Reduce(const std::shared_ptr<const TraceStep>& owner, std::vector<Source> ranks,
                   RankReduction reduction) {
  std::erase_if(ranks, [](const Source& rank) { return rank.tensor == nullptr; });
  TraceTensor whole = {.info = ranks.front().tensor->info, .elements = 0};
  TensorInfo info = *whole.info;
  info.dtype = DType::kF32;
  if (info.role == Role::kGrad) {
    whole.elements = ranks.front().tensor->elements;
    whole.source = SourceOf([owner, ranks, reduction](uint64_t begin, std::span<float> out) {
      LoadReduced(ranks, reduction, begin, out);
    });
  } else {
    // Ranks have the same parameters, and each its own part of the batch.
    if (info.role == Role::kValue) ranks.resize(1);
    for (const Source& rank : ranks) whole.elements += rank.tensor->elements;
    info.shape = ConcatenatedShape(ranks, whole.elements);
    whole.source = SourceOf([owner, ranks](uint64_t begin, std::span<float> out) {
      LoadConcatenated(ranks, begin, out);
    });
  }
  whole.info = std::move(info);
  return whole;
}

// Returns one recording of all `ranks`, which are in ascending order and have the same parameter
// gradients, reduced while it is read; a single one stays as it is. Parameter gradients are
// reduced. Activations and their gradients belong to the batch of their rank, so those of all ranks
// follow each other in one tensor. Parameters are the same on all ranks: those of the first rank
// are taken.
Recording ReduceRanks(std::vector<Recording> ranks, RankReduction reduction) {
  if (ranks.size() == 1) return std::move(ranks.front());
  Recording whole;
  whole.place = ranks.front().place;
  for (const Recording& rank : ranks) whole.file_bytes += rank.file_bytes;
  whole.micro = ranks.front().micro;
  whole.metadata = ranks.front().metadata;
  const auto owner = std::make_shared<const TraceStep>(TraceStep{0, std::move(ranks)});
  whole.ranks = {owner, &owner->recordings};
  for (TensorSources& tensor : CollectTensors(*owner, Pass::kAny)) {
    whole.tensors.push_back(Reduce(owner, std::move(tensor.recordings), reduction));
  }
  return whole;
}

// Tells how many ranks recorded a trace: "4", or "4, then 8".
void DescribeRanks(RankReduction reduction, TracePlan& plan) {
  std::string text;
  size_t last = 0;
  bool several = false;
  for (const PlannedStep& step : plan.steps) {
    several |= step.ranks > 1;
    if (step.ranks == last) continue;
    last = step.ranks;
    text += (text.empty() ? "" : ", then ") + std::to_string(last);
  }
  if (!several) return;
  plan.description["ranks"] = text;
  const std::string name(NameOf(reduction));
  plan.description["rank_reduction"] = name;
  plan.notes.push_back("each gradient is the " + name + " of " + text + " data-parallel ranks");
}

}  // namespace

const std::byte* TraceTensor::Bytes(uint64_t offset, std::span<std::byte> buffer) const {
  if (memory != nullptr) return memory + offset;
  Read(offset, buffer);
  return buffer.data();
}

struct TraceReader::Impl {
  RankReduction reduction() const { return options.ranks.value_or(RankReduction::kMean); }

  TracePlan plan;
  TraceOptions options;
  OpenFiles open;
};

TraceReader TraceReader::Open(std::span<const std::string> paths, const TraceOptions& options) {
  auto impl = std::make_shared<Impl>();
  impl->plan = PlanTrace(paths);
  impl->options = options;
  DescribeRanks(impl->reduction(), impl->plan);
  return TraceReader(std::move(impl));
}

size_t TraceReader::step_count() const { return impl_->plan.steps.size(); }

int64_t TraceReader::step_number(size_t i) const { return *impl_->plan.steps.at(i).step; }

std::vector<std::string> TraceReader::files(size_t i) const {
  std::vector<std::string> paths;
  for (const PlannedFile& file : impl_->plan.steps.at(i).files) {
    paths.insert(paths.end(), file.files.begin(), file.files.end());
    if (file.files.empty()) paths.push_back(file.path);
  }
  return paths;
}

uint64_t TraceReader::file_bytes() const { return impl_->plan.file_bytes; }

const std::map<std::string, std::string>& TraceReader::description() const {
  return impl_->plan.description;
}

const std::vector<std::string>& TraceReader::notes() const { return impl_->plan.notes; }

TraceStep TraceReader::Load(size_t i) const {
  const PlannedStep& planned = impl_->plan.steps.at(i);
  TraceStep step;
  step.step = *planned.step;
  std::vector<Recording> ranks;
  for (const PlannedFile& file : planned.files) {
    ranks.push_back(LoadRecording(file, planned.roles.get(), impl_->options, impl_->open));
    CheckPosition(ranks.back(), step.step, planned.files.size() / planned.ranks, planned.ranks);
    if (ranks.size() > 1) CheckSameGradients(ranks.front(), "rank 0", ranks.back());
    if (ranks.size() < planned.ranks) continue;
    step.recordings.push_back(ReduceRanks(std::exchange(ranks, {}), impl_->reduction()));
    if (step.recordings.size() > 1) {
      CheckSameGradients(step.recordings.front(), "micro-step 0", step.recordings.back());
    }
  }
  return step;
}

std::vector<const Recording*> RecordedFiles(const TraceStep& step) {
  std::vector<const Recording*> files;
  for (const Recording& recording : step.recordings) {
    if (recording.ranks == nullptr) {
      files.push_back(&recording);
    } else {
      for (const Recording& rank : *recording.ranks) files.push_back(&rank);
    }
  }
  return files;
}

}  // namespace dlsim
