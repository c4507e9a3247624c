// SPDX-License-Identifier: Apache-2.0
#include "sim/profile/step_encoder.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "dlsim/error.h"
#include "sim/profile/content_hash.h"
#include "sim/replay/steps_read_ahead.h"
#include "src/base/parallel_in_order.h"
#include "src/base/side_task.h"
#include "src/histogram/histogram_sums.h"

namespace dlsim::sim {
namespace {

// Counting a value takes as long as looking at this number of values.
constexpr uint64_t kLooksPerValue = 4;

// Notes the files that a step was counted from. Throws InputError if they changed since `state`.
void NoteFiles(const std::vector<std::string>& paths, FileState state, ProfileStep& step) {
  for (size_t k = 0; k < paths.size() && k < state.files.size(); ++k) {
    state.files[k].content = ContentHash(paths[k]);  // from the page cache
  }
  RequireUnchanged(paths, state);
  step.files = std::move(state.files);
}

// A step with its files as they were before it was opened.
struct StepWithFiles {
  std::vector<std::string> paths;
  FileState state;
  TraceStep step;
};

StepWithFiles OpenWithFiles(const TraceSource& steps, size_t i) {
  std::vector<std::string> paths = steps.files(i);
  FileState state = StateIfThere(paths);
  return {std::move(paths), std::move(state), steps.LoadStep(i)};
}

EncodedStep EncodeWhole(StepWithFiles opened, const HistogramEdges& edges,
                        const StepOptions& options) {
  ProfileStep step = ProfileOf(opened.step, edges, options);
  NoteFiles(opened.paths, std::move(opened.state), step);
  return EncodeStep(step, edges);
}

// What the profile of a step takes at most: as sums, and as the histograms that come of them.
uint64_t BytesOfProfile(const TraceStep& step, const HistogramEdges& edges) {
  uint64_t bytes = 1;
  for (const Recording& recording : step.recordings) {
    for (const TraceTensor& tensor : recording.tensors) {
      bytes += 2 * HistogramSums::MostBytes(tensor.elements, edges);
    }
  }
  return bytes;
}

StepOptions WithSettings(StepOptions options, const ProfileSettings& settings) {
  options.accumulation = settings.accumulation;
  options.scaled = settings.scaled;
  return options;
}

}  // namespace

StepEncoder::StepEncoder(const TraceReader& trace, const ProfileSettings& settings,
                         const HistogramEdges& edges, StepRange range, const StepOptions& options)
    : edges_(edges),
      steps_(trace, settings.accumulate_steps),
      queue_(steps_.step_count(), [this](size_t i) { return steps_.LoadStep(i); }),
      range_(range),
      options_(WithSettings(options, settings)) {
  if (range_.begin >= range_.end) return;
  state_ = StateIfThere(steps_.files(range_.begin));
  Start();
}

// Encoding takes one thread; it goes on while the next step is counted.
void StepEncoder::Start() {
  const size_t next = range_.begin + 1;
  FileState next_state;
  if (next < range_.end) next_state = StateIfThere(steps_.files(next));  // before it is opened
  const TraceStep opened = queue_.Take(range_.begin);
  ProfileStep step;
  const auto profile = [&] { step = ProfileOf(opened, edges_, options_); };
  next < range_.end ? queue_.LoadDuring(next, profile) : profile();
  NoteFiles(steps_.files(range_.begin), std::exchange(state_, std::move(next_state)), step);
  encoding_ = StartAsync([this, whole = std::make_shared<const ProfileStep>(std::move(step))] {
    return EncodeStep(*whole, edges_);
  });
}

std::optional<EncodedStep> StepEncoder::Next() {
  if (failure_) std::rethrow_exception(failure_);
  if (range_.begin >= range_.end) return std::nullopt;
  std::future<EncodedStep> encoding = std::move(encoding_);
  ++range_.begin;
  try {
    if (range_.begin < range_.end) Start();
  } catch (...) {
    failure_ = std::current_exception();  // the step before is good
  }
  return encoding.get();
}

void EncodeSteps(const TraceReader& trace, const ProfileSettings& settings,
                 const HistogramEdges& edges, StepRange range, const StepOptions& options,
                 const std::function<void(size_t, EncodedStep)>& take) {
  const TraceSource steps(trace, settings.accumulate_steps);
  const bool several =
      options.device == nullptr && range.begin < range.end && steps.HasSmallSteps();
  std::optional<StepWithFiles> first;
  if (several) first = OpenWithFiles(steps, range.begin);
  const uint64_t ahead = first ? options.memory_bytes / BytesOfProfile(first->step, edges) : 0;
  if (ahead <= 1) {
    first.reset();
    StepEncoder encoder(trace, settings, edges, range, options);
    for (size_t i = range.begin; i < range.end; ++i) take(i, *encoder.Next());
    return;
  }
  StepOptions of_each = WithSettings(options, settings);
  of_each.memory_bytes = options.memory_bytes / std::min<uint64_t>(ahead, kEnoughAhead);
  const size_t count = range.end - range.begin;
  StepsReadAhead read_ahead(steps, range.begin);
  const auto encode = [&](size_t k) {
    read_ahead.Before(range.begin + k);
    StepWithFiles opened =
        k == 0 ? *std::exchange(first, std::nullopt) : OpenWithFiles(steps, range.begin + k);
    return EncodeWhole(std::move(opened), edges, of_each);
  };
  ParallelInOrder(
      count, encode, [&](size_t k, EncodedStep step) { take(range.begin + k, std::move(step)); },
      trace.file_bytes() / steps.step_count() / sizeof(float) * count * kLooksPerValue, ahead);
}

}  // namespace dlsim::sim
