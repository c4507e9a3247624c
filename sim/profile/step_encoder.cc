// SPDX-License-Identifier: Apache-2.0
#include "sim/profile/step_encoder.h"

#include <memory>
#include <utility>

#include "dlsim/error.h"
#include "sim/profile/content_hash.h"
#include "src/base/beside.h"

namespace dlsim::sim {

StepEncoder::StepEncoder(const TraceReader& trace, const ProfileSettings& settings,
                         const HistogramEdges& edges, StepRange range, size_t stride,
                         ComputeDevice* device)
    : settings_(settings),
      edges_(edges),
      steps_(trace, settings.accumulate_steps),
      queue_(steps_.step_count(), [this](size_t i) { return steps_.LoadStep(i); }),
      range_(range),
      stride_(stride),
      device_(device) {
  if (range_.begin >= range_.end) return;
  state_ = StateIfThere(steps_.files(range_.begin));
  Start();
}

// Encoding takes one thread; it goes on while the next step is counted.
void StepEncoder::Start() {
  const size_t next = range_.begin + stride_;
  FileState next_state;
  if (next < range_.end) next_state = StateIfThere(steps_.files(next));  // before it is opened
  StepOptions options;
  options.accumulation = settings_.accumulation;
  options.device = device_;
  const TraceStep opened = queue_.Take(range_.begin);
  ProfileStep step;
  const auto profile = [&] { step = ProfileOf(opened, edges_, options); };
  next < range_.end ? queue_.LoadBeside(next, profile) : profile();
  const std::vector<std::string> paths = steps_.files(range_.begin);
  for (size_t k = 0; k < paths.size() && k < state_.files.size(); ++k) {
    state_.files[k].content = ContentHash(paths[k]);  // from the page cache
  }
  RequireUnchanged(paths, state_);
  step.files = std::exchange(state_, std::move(next_state)).files;
  encoding_ = StartBeside([this, whole = std::make_shared<const ProfileStep>(std::move(step))] {
    return EncodeStep(*whole, edges_);
  });
}

std::optional<EncodedStep> StepEncoder::Next() {
  if (failure_) std::rethrow_exception(failure_);
  if (range_.begin >= range_.end) return std::nullopt;
  std::future<EncodedStep> encoding = std::move(encoding_);
  range_.begin += stride_;
  try {
    if (range_.begin < range_.end) Start();
  } catch (...) {
    failure_ = std::current_exception();  // the step before is good
  }
  return encoding.get();
}

}  // namespace dlsim::sim
