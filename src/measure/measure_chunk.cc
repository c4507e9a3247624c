// SPDX-License-Identifier: Apache-2.0
#include "src/measure/measure_chunk.h"

namespace dlsim {

ChunkQuestion::ChunkQuestion(const Measurement& measurement, Asked asked)
    : measurement_(measurement),
      spec_(MakeCodecSpec(measurement.conversion)),
      asked_(asked),
      multiplying_(MakeMultiplyingSpec(spec_, measurement)),
      rounded_(MakeRoundedSpec(spec_, measurement)) {
  if (multiplying_) exact_ = WithoutMultiplications(*multiplying_);
}

ChunkQuestion::Nearest ChunkQuestion::NearestFor(const ChunkInputs& inputs) const {
  for (const std::optional<NearestSpec>* const spec : {&exact_, &multiplying_}) {
    if (!*spec) continue;
    const auto kernel = KernelFor(**spec, inputs, asked_ == Asked::kErrors);
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
  const ChunkQuestion::Nearest nearest = question.NearestFor(inputs_);
  if (nearest.spec == nullptr) return MeasureOther(question);
  if (!nearest.kernel.HasScale()) return MeasureShared(nearest);
  return MeasureNearest(values_, nearest, inputs_);
}

TensorStats ChunkMeasurer::MeasureOther(const ChunkQuestion& question) const {
  const std::optional<RoundedSpec>& spec = question.rounded();
  const auto kernel = spec ? KernelFor(*spec, inputs_) : std::nullopt;
  if (!kernel) return MeasureAnyChunk(values_, first_index_, question.measurement());
  return MeasureRounded(values_, first_index_, question.measurement(), *spec, *kernel, inputs_);
}

TensorStats MeasureChunk(std::span<const float> values, uint64_t first_index,
                         const Measurement& question) {
  return ChunkMeasurer(values, first_index).Measure(ChunkQuestion(question));
}

}  // namespace dlsim
