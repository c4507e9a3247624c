// SPDX-License-Identifier: Apache-2.0
// Copies of recorded traces with other values.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dlsim/trace.h"
#include "tests/support/trace_builder.h"

namespace dlsim {

using ChangeValues =
    std::function<void(int64_t step, const std::string& tensor, std::vector<float>& values)>;

// Returns the float32 values of a tensor.
inline std::vector<float> ValuesOf(const Recording& recording, const TraceTensor& tensor) {
  std::vector<float> values;
  VisitValues(recording, tensor, [&](uint64_t, std::span<const float> chunk) {
    values.insert(values.end(), chunk.begin(), chunk.end());
  });
  return values;
}

// Writes each step of a trace without micro-steps into a directory, in float32, changed.
inline void WriteChanged(const std::string& trace, const TempDir& into,
                         const ChangeValues& change) {
  const TraceReader reader = OpenTrace({trace});
  for (size_t i = 0; i < reader.step_count(); ++i) {
    const TraceStep step = reader.Load(i);
    const Recording& recording = step.recordings.front();
    std::vector<BuiltTensor> tensors;
    for (const TraceTensor& tensor : recording.tensors) {
      std::vector<float> values = ValuesOf(recording, tensor);
      change(step.step, tensor.info->name, values);
      tensors.push_back({tensor.info->name, "F32", tensor.info->shape, FloatBytes(values)});
    }
    into.Write("step-" + std::to_string(step.step) + ".safetensors", BuildSafetensors(tensors));
  }
}

}  // namespace dlsim
