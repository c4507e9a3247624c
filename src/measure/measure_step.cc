// SPDX-License-Identifier: Apache-2.0
#include "dlsim/measure_step.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>

#include "src/base/parallel_side_task.h"
#include "src/device/compute_device.h"
#include "src/measure/chunk_loader.h"
#include "src/measure/measure_block.h"
#include "src/measure/step_blocks.h"
#include "src/measure/step_channels.h"

namespace dlsim {
namespace {

// The answers of the blocks that are measured together.
class WaveAnswers {
 public:
  WaveAnswers(size_t blocks, size_t questions, size_t parts)
      : questions_(questions),
        parts_per_block_(questions * parts),
        parts_(blocks * parts_per_block_),
        sums_(blocks * 2 * questions_),
        details_(blocks * questions_) {}

  static constexpr uint64_t BytesPerBlock(size_t questions, size_t parts) {
    return questions * (parts * sizeof(TensorStats) + 2 * sizeof(double) + sizeof(GradientDetail));
  }

  BlockAnswer Of(size_t block) {
    const std::span<double> sums = std::span(sums_).subspan(block * 2 * questions_, 2 * questions_);
    return {std::span(parts_).subspan(block * parts_per_block_, parts_per_block_),
            sums.first(questions_), sums.last(questions_),
            std::span(details_).subspan(block * questions_, questions_)};
  }

 private:
  size_t questions_, parts_per_block_;
  std::vector<TensorStats> parts_;
  std::vector<double> sums_;
  std::vector<GradientDetail> details_;
};

// Adds the answer of a block to its tensor; called in block order.
void MergeAnswer(const BlockAnswer& from, size_t tensor, StepMeasurement& into) {
  const size_t parts = into.micro_steps.size();
  for (size_t q = 0; q < into.answers.size(); ++q) {
    TensorAnswer& answer = into.answers[q][tensor];
    answer.effective_sum_of_squares += from.effective[q];
    answer.scaled_sum_finite &= std::isfinite(from.scaled[q]);
    if (!from.details.empty()) answer.detail.Merge(from.details[q]);
    for (size_t p = 0; p < parts; ++p) answer.parts[p].Merge(from.parts[q * parts + p]);
  }
}

StepMeasurement EmptyMeasurement(const TraceStep& step, const std::vector<TensorSources>& tensors,
                                 size_t questions, const StepOptions& options) {
  StepMeasurement result;
  result.micro_steps = PartNumbers(step, options.accumulation);
  result.tensors.reserve(tensors.size());
  for (const TensorSources& tensor : tensors) result.tensors.push_back(tensor.header);
  TensorAnswer empty;
  empty.parts.resize(result.micro_steps.size());
  result.answers.resize(questions);
  for (std::vector<TensorAnswer>& answers : result.answers) answers.assign(tensors.size(), empty);
  return result;
}

}  // namespace

std::vector<StepTensor> TensorsOf(const TraceStep& step) {
  std::vector<StepTensor> tensors;
  for (const TensorSources& sources : CollectTensors(step, Pass::kBackward))
    tensors.push_back(sources.header);
  return tensors;
}

uint32_t StreamOf(const std::string& tensor, int64_t step, int64_t micro) {
  uint32_t hash = 2166136261u;
  const auto add = [&](uint8_t byte) { hash = (hash ^ byte) * 16777619u; };
  for (const char c : tensor) add(static_cast<uint8_t>(c));
  for (const int64_t number : {step, micro}) {
    for (int shift = 0; shift < 64; shift += 8) {
      add(static_cast<uint8_t>(static_cast<uint64_t>(number) >> shift));
    }
  }
  return hash;
}

namespace {

// Reading a block takes as long as this number of questions, and counting channels.
constexpr size_t kQuestionsPerReading = 2, kQuestionsPerChannels = 4;

// A tensor's only channel is known if it has values, which any answer tells.
void AddOnlyChannels(const StepChannels& channels, StepMeasurement& result) {
  for (size_t t = 0; t < result.tensors.size(); ++t) {
    if (!channels.LeavesOut(t)) continue;
    const bool has_values =
        std::ranges::any_of(result.answers.front()[t].parts,
                            [](const TensorStats& part) { return part.nonzero_finite() > 0; });
    result.channels[t].channels = has_values ? 1 : 0;
  }
}

// Measures all blocks on the CPU, and merges their answers in order.
void MeasureOnCpu(const StepWork& work, StepMeasurement& result) {
  const std::vector<TensorSources>& tensors = *work.tensors;
  std::optional<StepChannels> channels;
  if (work.options->channels) {
    channels.emplace(tensors,
                     work.questions.empty() ? OnlyChannels::kCounted : OnlyChannels::kLeftOut);
  }
  const BlockMeasurer measurer(work, channels ? &*channels : nullptr);
  const size_t questions =
      work.questions.size() + kQuestionsPerReading + (channels ? kQuestionsPerChannels : 0);
  const uint64_t block_bytes =
      WaveAnswers::BytesPerBlock(work.questions.size(), result.micro_steps.size());
  const auto measure = [&](std::span<const Block> wave) {
    WaveAnswers answers(wave.size(), work.questions.size(), result.micro_steps.size());
    uint64_t elements = 0;
    for (const Block& block : wave) elements += block.count;
    ParallelForWithSideTask(
        wave.size(), [&](size_t i) { measurer.Measure(wave[i], answers.Of(i)); },
        elements * work.micro_steps.size() * questions);
    for (size_t i = 0; i < wave.size(); ++i) MergeAnswer(answers.Of(i), wave[i].tensor, result);
  };
  ForEachWave(tensors, measure, {work.options->memory_bytes, block_bytes});
  if (!channels) return;
  result.channels = channels->Take();
  if (!work.questions.empty()) AddOnlyChannels(*channels, result);
}

StepMeasurement MeasurePass(const TraceStep& step, Pass pass,
                            std::span<const StepQuestion> questions, const StepOptions& options) {
  const std::vector<TensorSources> tensors = CollectTensors(step, pass);
  StepMeasurement result = EmptyMeasurement(step, tensors, questions.size(), options);
  const StepWork work = {&step, &tensors, result.micro_steps, questions, &options};
  if (options.device == nullptr) {
    MeasureOnCpu(work, result);
    return result;
  }
  const auto merge = [&](size_t tensor, const BlockAnswer& answer) {
    MergeAnswer(answer, tensor, result);
  };
  RunOnDevice(work, *options.device->Measure(work, merge));
  if (options.channels) result.channels = MeasureChannels(step, options.accumulation);
  return result;
}

}  // namespace

StepMeasurement MeasureStep(const TraceStep& step, std::span<const StepQuestion> questions,
                            const StepOptions& options) {
  return MeasurePass(step, Pass::kBackward, questions, options);
}

StepMeasurement MeasureForward(const TraceStep& step, std::span<const Conversion> conversions,
                               const StepOptions& options) {
  std::vector<StepQuestion> questions;
  for (const Conversion& conversion : conversions) questions.push_back({.conversion = conversion});
  StepOptions one_by_one = options;
  one_by_one.accumulation = Accumulation::kQuantizeThenSum;
  one_by_one.channels = false;
  return MeasurePass(step, Pass::kForward, questions, one_by_one);
}

}  // namespace dlsim
