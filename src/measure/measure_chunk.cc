// SPDX-License-Identifier: Apache-2.0
#include "src/measure/measure_chunk.h"

#include "src/base/check.h"

namespace dlsim {

ChunkQuestion::ChunkQuestion(const Measurement& measurement, Asked asked)
    : measurement_(measurement),
      spec_(MakeCodecSpec(measurement.conversion)),
      asked_(asked),
      multiplying_(MakeMultiplyingSpec(spec_, measurement)),
      rounded_(MakeRoundedSpec(spec_, measurement)) {
  if (multiplying_) exact_ = WithoutMultiplications(*multiplying_);
  if (rounded_) unscaled_rounded_ = WithoutMultiplications(*rounded_);
}

ChunkQuestion::Nearest ChunkQuestion::NearestFor(const ChunkInputs& inputs) const {
  for (const std::optional<NearestSpec>* const spec : {&exact_, &multiplying_}) {
    if (!*spec) continue;
    const auto kernel = KernelFor(**spec, inputs, asked_ == Asked::kErrors);
    if (kernel) return {&**spec, *kernel};
  }
  return {};
}

std::optional<TensorStats> ChunkQuestion::AnswerFrom(const ChunkInputs& inputs,
                                                     uint64_t elements) const {
  return multiplying_ ? AnswerFromExtremes(*multiplying_, inputs, elements) : std::nullopt;
}

ChunkQuestion::Rounded ChunkQuestion::RoundedFor(const ChunkInputs& inputs,
                                                 bool needs_scaled) const {
  for (const std::optional<RoundedSpec>* const spec : {&unscaled_rounded_, &rounded_}) {
    if (!*spec || (needs_scaled && spec != &rounded_)) continue;
    const auto kernel = KernelFor(**spec, inputs);
    if (kernel) return {&**spec, *kernel};
  }
  return {};
}

ChunkMeasurer::ChunkMeasurer(std::span<const float> values, uint64_t first_index)
    : values_(values), first_index_(first_index), inputs_(MeasureInputs(values)) {}

TensorStats ChunkMeasurer::MeasureShared(const ChunkQuestion::Nearest& nearest) {
  const Asked asked = nearest.kernel.errors_only ? Asked::kErrors : Asked::kAll;
  std::optional<Shared>& shared = shared_[nearest.spec->dropped_bits];
  if (!shared || (asked == Asked::kAll && shared->asked != Asked::kAll)) {
    shared = {asked, MeasureNearest(values_, nearest, inputs_)};
  }
  return shared->stats;
}

TensorStats ChunkMeasurer::Measure(const ChunkQuestion& question) {
  if (const auto answer = question.AnswerFrom(inputs_, values_.size())) return *answer;
  const ChunkQuestion::Nearest nearest = question.NearestFor(inputs_);
  if (nearest.spec == nullptr) {
    return MeasureAlone(question, nullptr);
  }
  if (!nearest.kernel.HasScale()) return MeasureShared(nearest);
  return MeasureNearest(values_, nearest, inputs_);
}

TensorStats ChunkMeasurer::MeasureAndAccumulate(const ChunkQuestion& question,
                                                const AccumulatedChunk& sums) {
  DLSIM_CHECK(sums.unscaled.size() == values_.size() && sums.scaled.size() == values_.size());
  return MeasureAlone(question, &sums);
}

// Measures what questions do not share.
TensorStats ChunkMeasurer::MeasureAlone(const ChunkQuestion& question,
                                        const AccumulatedChunk* sums) const {
  const ChunkQuestion::Rounded rounded = question.RoundedFor(inputs_, sums != nullptr);
  const Measurement& measurement = question.measurement();
  return rounded.spec == nullptr
             ? MeasureAnyChunk(values_, first_index_, measurement, sums)
             : MeasureRounded(values_, first_index_, measurement, rounded, inputs_, sums);
}

TensorStats MeasureChunk(std::span<const float> values, uint64_t first_index,
                         const Measurement& question) {
  return ChunkMeasurer(values, first_index).Measure(ChunkQuestion(question));
}

TensorStats MeasureAndAccumulateChunk(std::span<const float> values, uint64_t first_index,
                                      const Measurement& question, const AccumulatedChunk& sums) {
  return ChunkMeasurer(values, first_index).MeasureAndAccumulate(ChunkQuestion(question), sums);
}

}  // namespace dlsim
