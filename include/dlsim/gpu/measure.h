// SPDX-License-Identifier: Apache-2.0
// Measures what conversions would do to arrays in device memory: the counters and sums of Measure
// on the CPU, digit for digit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "dlsim/gpu/stream.h"
#include "dlsim/gpu/tensor_list.h"
#include "dlsim/measure.h"

namespace dlsim::gpu {

// Memory that measurements of a list of tensors need. Made once; Measure neither allocates nor
// waits. Questions may be changed between calls: they travel with the launches.
class Measurer {
 public:
  // `tensors` must live as long as this. Throws Error if there is too little memory.
  Measurer(const TensorList& tensors, size_t most_questions);
  Measurer(Measurer&&) noexcept;
  Measurer& operator=(Measurer&&) noexcept;
  ~Measurer();

  // Launches the measurement of all tensors for each question, at most `most_questions`; random
  // bits come from question.random.seed and each tensor's own stream. The results are in
  // device_results() once the stream is done, and in host_results() too, which is pinned memory:
  // [question * tensor_count + tensor]. The next call overwrites them: use one stream, or wait.
  // Throws Error that names the call if there are too many questions or a launch fails.
  void Measure(std::span<const Measurement> questions, Stream stream);

  const TensorStats* device_results() const;
  std::span<const TensorStats> host_results() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dlsim::gpu
