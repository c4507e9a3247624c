// SPDX-License-Identifier: Apache-2.0
// Profiles and encodes every n-th step of a trace, the next one while the last is encoded.
#pragma once

#include <cstddef>
#include <exception>
#include <future>
#include <optional>

#include "dlsim/profile_file.h"
#include "sim/profile/finished_steps.h"
#include "sim/replay/step_queue.h"
#include "sim/replay/trace_source.h"

namespace dlsim::sim {

class StepEncoder {
 public:
  // Steps `range.begin`, `range.begin + stride`, ... All must live as long as this. `device` counts
  // them, as StepOptions::device.
  StepEncoder(const TraceReader& trace, const ProfileSettings& settings,
              const HistogramEdges& edges, StepRange range, size_t stride,
              ComputeDevice* device = nullptr);

  // Returns the next step; nothing after the last. Throws Error.
  std::optional<EncodedStep> Next();

 private:
  void Start();

  const ProfileSettings& settings_;
  const HistogramEdges& edges_;
  TraceSource steps_;
  StepQueue<TraceStep> queue_;
  StepRange range_;
  size_t stride_;
  ComputeDevice* device_;
  FileState state_;  // of the files of the step that comes next, as they were opened
  std::future<EncodedStep> encoding_;
  std::exception_ptr failure_;
};

}  // namespace dlsim::sim
