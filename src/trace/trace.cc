// SPDX-License-Identifier: Apache-2.0
#include "dlsim/trace.h"

#include <sys/stat.h>

#include <array>
#include <mutex>
#include <optional>
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

namespace {

// What tells a file from the one that was at its path before: device, inode, size, and times in
// nanoseconds; zeros if there is none.
using FileMark = std::array<int64_t, 5>;

std::vector<FileMark> MarksOf(const std::vector<std::string>& paths) {
  constexpr int64_t kNanoseconds = 1'000'000'000;
  std::vector<FileMark> marks;
  for (const std::string& path : paths) {
    struct stat file = {};
    if (stat(path.c_str(), &file) != 0) file = {};
    marks.push_back({static_cast<int64_t>(file.st_dev), static_cast<int64_t>(file.st_ino),
                     file.st_size, file.st_mtim.tv_sec * kNanoseconds + file.st_mtim.tv_nsec,
                     file.st_ctim.tv_sec * kNanoseconds + file.st_ctim.tv_nsec});
  }
  return marks;
}

}  // namespace

struct TraceReader::Impl {
  // A step and its files as they were before they were opened.
  struct OpenedStep {
    TraceStep step;
    std::vector<FileMark> marks;
  };

  RankReduction reduction() const { return options.ranks.value_or(RankReduction::kMean); }

  TracePlan plan;
  TraceOptions options;
  DumpCache dumps;

  // The first step, of which much is asked before all are read in order: it stays open until
  // another is opened, and no more from then on.
  std::mutex mutex;
  std::optional<OpenedStep> first;
  bool goes_on = false;

  TraceStep Open(size_t i);
  void Keep(OpenedStep opened) {
    const std::lock_guard lock(mutex);
    if (!goes_on) first = std::move(opened);
  }
  void GoOn() {
    const std::lock_guard lock(mutex);
    goes_on = true;
    first.reset();
  }
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
  if (i > 0) {
    impl_->GoOn();
    return impl_->Open(i);
  }
  std::vector<FileMark> marks = MarksOf(files(0));
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->first && impl_->first->marks == marks) return impl_->first->step;
  }
  TraceStep step = impl_->Open(0);
  impl_->Keep({step, std::move(marks)});
  return step;
}

TraceStep TraceReader::Impl::Open(size_t i) {
  const PlannedStep& planned = plan.steps.at(i);
  const FileCounts counts = {planned.files.size() / planned.ranks, planned.ranks};
  TraceStep step;
  step.step = *planned.step;
  std::vector<Recording> ranks;
  for (const PlannedFile& file : planned.files) {
    ranks.push_back(LoadRecording(file, planned.roles.get(), options, dumps));
    CheckPosition(ranks.back(), step.step, counts);
    if (ranks.size() > 1) CheckSameGradients(ranks.front(), "rank 0", ranks.back());
    if (ranks.size() < planned.ranks) continue;
    step.recordings.push_back(ReduceRanks(std::exchange(ranks, {}), reduction()));
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
