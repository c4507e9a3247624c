// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/trace_source.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "sim/replay/file_state.h"
#include "sim/replay/loss_tensors.h"
#include "sim/replay/trace_notes.h"
#include "src/trace/listed_names.h"
#include "src/trace/read_only_file.h"

namespace dlsim::sim {
namespace {

// Steps of at most this size in bytes are small: some milliseconds of one thread.
constexpr uint64_t kSmallStepBytes = uint64_t{16} << 20;
// A process can have some thousand files open, and several steps for each thread.
constexpr size_t kFewFiles = 4;

bool HasMicroSteps(const TraceStep& step) {
  return step.recordings.size() > 1 || step.recordings.front().micro >= 0;
}

Error NotTheRecorded(size_t asked, size_t recorded) {
  return UsageError("grad_accum_steps", "the trace is recorded with micro-steps of its own",
                    std::to_string(recorded), std::to_string(asked));
}

class RecordedStep final : public GradientStep {
 public:
  RecordedStep(TraceStep step, std::vector<std::string> files, FileState before)
      : step_(std::move(step)), files_(std::move(files)), before_(std::move(before)) {}

  int64_t number() const override { return step_.step; }
  const TraceStep* Recorded() const override { return &step_; }
  bool HasBrokenLoss() const override {
    return std::ranges::any_of(step_.recordings, [](const Recording& recording) {
      return sim::HasBrokenLoss(recording.metadata);
    });
  }
  RefusedSteps RefusedBefore() const override {
    RefusedSteps refusals;
    for (const Recording& recording : step_.recordings) {
      refusals.Add(RefusedStepsIn(recording.metadata));
    }
    return refusals;
  }
  std::set<std::string> Listed(std::string_view key) const override {
    if (key == kHarmlessOverflowKey) return IfUnchanged(HarmlessOverflows(step_, {}));
    std::set<std::string> names;
    for (const Recording& recording : step_.recordings) {
      names.merge(ListedIn(recording.metadata, key));
    }
    return names;
  }
  std::string Metadata(std::string_view key) const override {
    for (const Recording& recording : step_.recordings) {
      const auto found = recording.metadata.find(std::string(key));
      if (found != recording.metadata.end()) return found->second;
    }
    return "";
  }
  std::vector<StepTensor> Tensors() const override { return TensorsOf(step_); }
  std::vector<GradientSpread> Spreads() const override {
    return IfUnchanged(MeasureSpreads(step_));
  }
  ProfileTotals Totals(const HistogramEdges& edges, const StepOptions& options) override {
    return IfUnchanged(TotalsOf(step_, edges, options));
  }
  StepMeasurement Measure(std::span<const StepQuestion> questions,
                          const StepOptions& options) const override {
    return IfUnchanged(MeasureStep(step_, questions, options));
  }
  StepMeasurement MeasureForward(std::span<const Conversion> conversions,
                                 const StepOptions& options) const override {
    return IfUnchanged(dlsim::MeasureForward(step_, conversions, options));
  }

  ScaledTensors MeasureScaled(std::span<const NamedScaledFormat> formats,
                              const ScaleOfTensor& scale) const override {
    return IfUnchanged(
        ScaledTensors{DescribeTensors(step_), MeasureScaledStep(step_, formats, scale)});
  }

 private:
  // What was found in files that changed meanwhile belongs to no step.
  template <class Found>
  Found IfUnchanged(Found found) const {
    RequireUnchanged(files_, before_);
    return found;
  }

  TraceStep step_;
  std::vector<std::string> files_;
  FileState before_;  // of the files, as they were opened
};

}  // namespace

SourceFacts FactsOf(const TraceReader& trace) {
  const size_t steps = trace.step_count();
  return {.steps = steps,
          .first_step = trace.step_number(0),
          .last_step = trace.step_number(steps - 1),
          .file_bytes = trace.file_bytes(),
          .description = trace.description(),
          .notes = NotesOnTrace(trace),
          .profile = {}};
}

TraceSource::TraceSource(const TraceReader& trace, int64_t accumulate_steps)
    : trace_(trace), facts_(FactsOf(trace)) {
  if (accumulate_steps < 1) {
    throw UsageError("grad_accum_steps", "not a number of steps", "1 or more",
                     std::to_string(accumulate_steps));
  }
  const size_t asked = static_cast<size_t>(accumulate_steps);
  if (asked > 1) {
    const TraceStep first = trace.Load(0);
    if (!HasMicroSteps(first)) {
      steps_per_effective_ = asked;
    } else if (first.recordings.size() != asked) {
      throw NotTheRecorded(asked, first.recordings.size());
    }
  }
  count_ = trace.step_count() / steps_per_effective_;
  if (count_ == 0) {
    throw UsageError("grad_accum_steps", "more than the trace has steps",
                     "at most " + std::to_string(trace.step_count()), std::to_string(asked));
  }
}

void TraceSource::LeaveOutLosses() {
  const HistogramEdges edges({});
  losses_ = FindLosses(count_, [&](size_t i) {
    TraceStep step = LoadStep(i);
    size_t others = 0;
    for (Recording& recording : step.recordings) {
      others += recording.tensors.size();
      std::erase_if(recording.tensors, [](const TraceTensor& tensor) {
        return !MayBeLoss(tensor.name, tensor.role, tensor.shape);
      });
      others -= recording.tensors.size();
    }
    return others == 0 ? ProfileStep() : ProfileOf(step, edges, {});
  });
  NoteLosses(losses_, facts_.notes);
}

// The steps of one file are read in order.
bool TraceSource::HasSmallSteps() const {
  if (count_ < 2 || facts_.file_bytes / count_ > kSmallStepBytes) return false;
  const std::vector<std::string> first = files(0);
  return first.size() <= kFewFiles && first != files(1);
}

void TraceSource::ReadAhead(size_t i) const {
  for (const std::string& path : files(i)) ReadOnlyFile::ReadAhead(path);
}

int64_t TraceSource::number(size_t i) const {
  return trace_.step_number((i + 1) * steps_per_effective_ - 1);
}

std::vector<std::string> TraceSource::files(size_t i) const {
  std::vector<std::string> paths;
  for (size_t k = 0; k < steps_per_effective_; ++k) {
    for (std::string& path : trace_.files(i * steps_per_effective_ + k)) {
      paths.push_back(std::move(path));
    }
  }
  return paths;
}

TraceStep TraceSource::LoadStep(size_t i) const {
  if (steps_per_effective_ == 1) return trace_.Load(i);
  TraceStep effective;
  for (size_t k = 0; k < steps_per_effective_; ++k) {
    TraceStep step = trace_.Load(i * steps_per_effective_ + k);
    if (HasMicroSteps(step)) throw NotTheRecorded(steps_per_effective_, step.recordings.size());
    Recording& recording = step.recordings.front();
    recording.micro = static_cast<int64_t>(k);
    recording.grad_scale *= static_cast<float>(steps_per_effective_);
    effective.step = step.step;
    effective.recordings.push_back(std::move(recording));
  }
  return effective;
}

std::unique_ptr<GradientStep> TraceSource::Load(size_t i, StepNeeds /*needs*/) const {
  std::vector<std::string> paths = files(i);
  FileState before = StateIfThere(paths);
  TraceStep step = LoadStep(i);
  for (Recording& recording : step.recordings) {
    if (losses_.empty()) break;
    std::erase_if(recording.tensors,
                  [&](const TraceTensor& tensor) { return losses_.contains(tensor.name); });
  }
  return std::make_unique<RecordedStep>(std::move(step), std::move(paths), std::move(before));
}

}  // namespace dlsim::sim
