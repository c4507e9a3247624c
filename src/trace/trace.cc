// SPDX-License-Identifier: Apache-2.0
#include "dlsim/trace.h"

#include <map>
#include <utility>

#include "dlsim/error.h"
#include "src/trace/layout.h"
#include "src/trace/metadata.h"
#include "src/trace/rank_reduction.h"
#include "src/trace/recording.h"
#include "src/trace/shards.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

using ShapeMap = std::map<std::string_view, const std::vector<uint64_t>*>;

ShapeMap GradientShapes(const Recording& recording) {
  ShapeMap shapes;
  for (const TraceTensor& tensor : recording.tensors) {
    if (tensor.role == Role::kGrad) shapes.emplace(tensor.name, &tensor.shape);
  }
  return shapes;
}

// Gradients of micro-steps and of ranks are added, so they must be of the same parameters.
// Activation gradients belong to their own batch and may differ. `first_name` is for messages.
void CheckSameGradients(const Recording& first, const std::string& first_name,
                        const Recording& other) {
  const ShapeMap expected = GradientShapes(first);
  const ShapeMap shapes = GradientShapes(other);
  for (const auto& [name, shape] : shapes) {
    const auto match = expected.find(name);
    if (match == expected.end()) {
      throw InputError(TensorPlace(other.place, name),
                       "is not in " + first_name + " of the same step");
    }
    if (*match->second != *shape) {
      throw InputError(TensorPlace(other.place, name), "shape differs from " + first_name,
                       ShapeText(*match->second), ShapeText(*shape));
    }
  }
  for (const auto& [name, shape] : expected) {
    if (shapes.contains(name)) continue;
    throw InputError(TensorPlace(other.place, name), "is missing, but " + first_name + " has it");
  }
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
  read(offset, buffer);
  return buffer.data();
}

struct TraceReader::Impl {
  RankReduction reduction() const { return options.ranks.value_or(RankReduction::kMean); }

  TracePlan plan;
  TraceOptions options;
  OpenFiles open;
};

TraceReader::TraceReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TraceReader::TraceReader(TraceReader&&) noexcept = default;
TraceReader& TraceReader::operator=(TraceReader&&) noexcept = default;
TraceReader::~TraceReader() = default;

TraceReader TraceReader::Open(std::span<const std::string> paths, const TraceOptions& options) {
  auto impl = std::make_unique<Impl>();
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
    paths.insert(paths.end(), file.arrays.begin(), file.arrays.end());
    if (file.arrays.empty()) paths.push_back(file.path);
    if (file.container != Container::kShards) continue;
    for (const auto& [shard, names] : ReadShardIndex(file.path)) {
      paths.push_back(ShardPath(file.path, shard));
    }
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
  const FileCounts counts = {planned.files.size() / planned.ranks, planned.ranks};
  TraceStep step;
  step.step = *planned.step;
  std::vector<Recording> ranks;
  for (const PlannedFile& file : planned.files) {
    ranks.push_back(LoadRecording(file, planned.roles.get(), impl_->options, impl_->open));
    CheckPosition(ranks.back(), step.step, counts);
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
