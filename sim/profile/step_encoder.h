// SPDX-License-Identifier: Apache-2.0
// Profiles and encodes the steps of a trace.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <future>
#include <optional>

#include "dlsim/profile_file.h"
#include "sim/profile/finished_steps.h"
#include "sim/replay/step_queue.h"
#include "sim/replay/trace_source.h"

namespace dlsim::sim {

// Goes from step to step: the threads share each, and the last is encoded while they do.
class StepEncoder {
 public:
  // All must live as long as this. The accumulation and the scaled formats are those of the
  // settings.
  StepEncoder(const TraceReader& trace, const ProfileSettings& settings,
              const HistogramEdges& edges, StepRange range, const StepOptions& options = {});

  // Returns the next step; nothing after the last. Throws Error.
  std::optional<EncodedStep> Next();

 private:
  void Start();

  const HistogramEdges& edges_;
  TraceSource steps_;
  StepQueue<TraceStep> queue_;
  StepRange range_;
  StepOptions options_;
  FileState state_;  // of the files of the step that comes next, as they were opened
  std::future<EncodedStep> encoding_;
  std::exception_ptr failure_;
};

// Encodes the steps that a StepEncoder does, and calls take(i, step) for each in order. Of small
// steps each thread encodes its own, as many parts of one of them take one thread only; as many at
// once as the memory holds. Throws Error; what comes before the step that failed was taken.
void EncodeSteps(const TraceReader& trace, const ProfileSettings& settings,
                 const HistogramEdges& edges, StepRange range, const StepOptions& options,
                 const std::function<void(size_t, EncodedStep)>& take);

}  // namespace dlsim::sim
