// SPDX-License-Identifier: Apache-2.0
#include "dlsim/gpu/measure.h"

#include <string>
#include <vector>

#include "dlsim/error.h"
#include "gpu/base/check_cuda.h"
#include "gpu/base/device_buffer.h"
#include "gpu/measure/measure_kernels.h"

namespace dlsim::gpu {

struct Measurer::State {
  State(const TensorList& list, size_t most)
      : tensors(&list),
        most_questions(most),
        of_pieces(most * list.piece_count()),
        of_tensors(most * list.tensor_count()),
        on_host(most * list.tensor_count()),
        questions(most) {}

  const TensorList* tensors;
  size_t most_questions;
  DeviceBuffer<TensorStats> of_pieces, of_tensors;
  PinnedBuffer<TensorStats> on_host;
  std::vector<DeviceQuestion> questions;
  size_t asked = 0;  // by the last call
};

namespace {

DeviceQuestion ForDevice(const Measurement& question) {
  DeviceQuestion result;
  result.conversion = question.conversion;
  result.scale = question.scale;
  result.seed = question.random.seed;
  return result;
}

}  // namespace

Measurer::Measurer(const TensorList& tensors, size_t most_questions) {
  const CurrentDevice current(tensors.device());
  state_ = std::make_unique<State>(tensors, most_questions);
}

Measurer::Measurer(Measurer&&) noexcept = default;
Measurer& Measurer::operator=(Measurer&&) noexcept = default;
Measurer::~Measurer() = default;

void Measurer::Measure(std::span<const Measurement> questions, Stream stream) {
  State& state = *state_;
  const TensorList& tensors = *state.tensors;
  if (questions.size() > state.most_questions) {
    throw UsageError("Measurer::Measure", "too many questions",
                     "at most " + std::to_string(state.most_questions),
                     std::to_string(questions.size()));
  }
  const CurrentDevice current(tensors.device());
  state.asked = questions.size();
  for (size_t q = 0; q < questions.size(); ++q) state.questions[q] = ForDevice(questions[q]);
  const std::span<const DeviceQuestion> asked = std::span(state.questions).first(questions.size());
  const auto tensor_count = static_cast<uint32_t>(tensors.tensor_count());
  LaunchMeasure(tensors.pieces(), tensors.piece_count(), asked, state.of_pieces.data(), stream);
  LaunchMerge(tensors.pieces(), tensors.piece_count(), state.of_pieces.data(), asked.size(),
              tensor_count, state.of_tensors.data(), stream);
  if (asked.empty() || tensor_count == 0) return;
  CheckCuda(cudaMemcpyAsync(state.on_host.data(), state.of_tensors.data(),
                            asked.size() * tensor_count * sizeof(TensorStats),
                            cudaMemcpyDeviceToHost, stream),
            "cudaMemcpyAsync");
}

const TensorStats* Measurer::device_results() const { return state_->of_tensors.data(); }

std::span<const TensorStats> Measurer::host_results() const {
  return state_->on_host.span().first(state_->asked * state_->tensors->tensor_count());
}

}  // namespace dlsim::gpu
