// SPDX-License-Identifier: Apache-2.0
#include "dlsim/measure_step.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

#include "src/base/parallel.h"
#include "src/measure/measure_chunk.h"
#include "src/measure/step_blocks.h"

namespace dlsim {
namespace {

// Looks at gradients, unscaled and still scaled.
GradientDetail DetailOf(const DetailQuestion& question, std::span<const float> unscaled,
                        std::span<const float> scaled) {
  const bool limit_unscaled = question.limit_domain == ClipDomain::kUnscaled;
  GradientDetail detail;
  for (size_t i = 0; i < unscaled.size(); ++i) {
    const float gradient = std::fabs(unscaled[i]), still_scaled = std::fabs(scaled[i]);
    if (question.sums) {
      detail.scaled_sum += double{scaled[i]};
      detail.scaled_sum_of_squares += double{still_scaled} * double{still_scaled};
    }
    const bool replaces = gradient > detail.absmax || std::isnan(gradient);  // and NaN stays
    detail.absmax = replaces ? gradient : detail.absmax;
    detail.below_edge += still_scaled < question.edge ? 1 : 0;
    detail.above_edge += still_scaled >= question.edge ? 1 : 0;
    detail.above_limit += (limit_unscaled ? gradient : still_scaled) > question.limit ? 1 : 0;
  }
  detail.elements = unscaled.size();
  if (!std::isfinite(detail.absmax)) detail.absmax = std::numeric_limits<float>::infinity();
  return detail;
}

// What a block holds, by question.
struct BlockAnswer {
  std::vector<TensorStats> parts;
  double unscaled_squares = 0, scaled_squares = 0;  // of the sums over the parts
  GradientDetail detail;
};

// A step that is measured; see MeasureStep.
struct Work {
  const TraceStep& step;
  std::span<const StepQuestion> questions;
  const StepOptions& options;
  std::vector<TensorSources> tensors;
  std::vector<int64_t> parts;

  Measurement MeasurementOf(const StepQuestion& question, size_t tensor, size_t part) const {
    Measurement measurement = {question.conversion, question.ScaleOf(tensor), {}};
    if (measurement.conversion.rounding == Rounding::kStochastic) {
      measurement.random = {options.seed,
                            StreamOf(tensors[tensor].first->info->name, step.step, parts[part])};
    }
    return measurement;
  }
};

std::vector<BlockAnswer> MeasureBlock(const Work& work, const Block& block) {
  BlockLoader loader(work.options.accumulation);
  loader.Read(work.tensors[block.tensor], block);
  std::vector<BlockAnswer> answers(work.questions.size());
  std::vector<float> unscaled, scaled;
  for (size_t q = 0; q < work.questions.size(); ++q) {
    const StepQuestion& question = work.questions[q];
    BlockAnswer& answer = answers[q];
    answer.parts.resize(work.parts.size());
    for (size_t begin = 0; begin < block.count; begin += kChunkElements) {
      unscaled.assign(std::min(kChunkElements, block.count - begin), 0.0f);
      scaled.assign(unscaled.size(), 0.0f);
      for (size_t part = 0; part < work.parts.size(); ++part) {
        const std::span<const float> values = loader.Values(part);
        if (begin >= values.size()) continue;
        const size_t count = std::min(kChunkElements, values.size() - begin);
        const AccumulatedChunk sums = {std::span(unscaled).first(count),
                                       std::span(scaled).first(count)};
        answer.parts[part].Merge(MeasureChunk(values.subspan(begin, count), block.begin + begin,
                                              work.MeasurementOf(question, block.tensor, part),
                                              &sums));
      }
      answer.unscaled_squares += SumOfSquaresOfChunk(unscaled);
      answer.scaled_squares += SumOfSquaresOfChunk(scaled);
      if (question.detail) answer.detail.Merge(DetailOf(*question.detail, unscaled, scaled));
    }
  }
  return answers;
}

}  // namespace

std::vector<StepAnswer> MeasureStep(const TraceStep& step, std::span<const StepQuestion> questions,
                                    const StepOptions& options) {
  const Work work = {step, questions, options, CollectTensors(step, Pass::kBackward),
                     PartNumbers(step, options.accumulation)};
  std::vector<StepAnswer> answers(questions.size());
  for (StepAnswer& answer : answers) {
    answer.resize(work.tensors.size());
    for (TensorAnswer& tensor : answer) {
      tensor.MakeRest().parts.resize(work.parts.size());
      tensor.MakeRest().converted_squares = 0;
    }
  }
  ForEachWave(work.tensors,
              [&](std::span<const Block> wave) {
                std::vector<std::vector<BlockAnswer>> found(wave.size());
                uint64_t elements = 0;
                for (const Block& block : wave) elements += block.count;
                ParallelFor(
                    wave.size(), [&](size_t i) { found[i] = MeasureBlock(work, wave[i]); },
                    elements * work.parts.size() * (questions.size() + 1));
                for (size_t i = 0; i < wave.size(); ++i) {
                  for (size_t q = 0; q < questions.size(); ++q) {
                    TensorAnswer& answer = answers[q][wave[i].tensor];
                    TensorAnswer::Rest& rest = answer.MakeRest();
                    const BlockAnswer& block = found[i][q];
                    for (size_t part = 0; part < work.parts.size(); ++part) {
                      rest.parts[part].Merge(block.parts[part]);
                    }
                    *rest.converted_squares += block.unscaled_squares;
                    answer.scaled_sum_finite &= std::isfinite(block.scaled_squares);
                    rest.detail.Merge(block.detail);
                  }
                }
              },
              {options.memory_bytes,
               questions.size() * (work.parts.size() * sizeof(TensorStats) + sizeof(BlockAnswer))});
  for (StepAnswer& answer : answers) {
    for (TensorAnswer& tensor : answer) {
      TensorAnswer::Rest& rest = tensor.MakeRest();
      for (const TensorStats& part : rest.parts) tensor.total.Merge(part);
      if (rest.parts.size() == 1) rest.parts.clear();
      tensor.unscaled_finite = std::isfinite(*rest.converted_squares);
    }
  }
  return answers;
}

namespace {

// Adds what of(tensor, values) returns for the blocks of each gradient, over all parts, to `zero`.
template <class Result, class Of>
std::vector<Result> OverBlocks(const TraceStep& step, Accumulation accumulation, const Result& zero,
                               const Of& of) {
  const std::vector<TensorSources> tensors = CollectTensors(step, Pass::kBackward);
  std::vector<Result> results(tensors.size(), zero);
  ForEachWave(tensors, [&](std::span<const Block> wave) {
    std::vector<Result> of_block(wave.size(), zero);
    ParallelFor(wave.size(), [&](size_t i) {
      BlockLoader loader(accumulation);
      loader.Read(tensors[wave[i].tensor], wave[i]);
      for (size_t part = 0; part < loader.part_count(); ++part) {
        of_block[i] += of(wave[i].tensor, loader.Values(part));
      }
    });
    for (size_t i = 0; i < wave.size(); ++i) results[wave[i].tensor] += of_block[i];
  });
  return results;
}

}  // namespace

std::vector<double> SumGradients(const TraceStep& step) {
  const auto sum_of = [](size_t, std::span<const float> values) {
    double sum = 0;
    for (size_t begin = 0; begin < values.size(); begin += kChunkElements) {
      sum += SumOfChunk(values.subspan(begin, std::min(kChunkElements, values.size() - begin)));
    }
    return sum;
  };
  return OverBlocks(step, Accumulation::kQuantizeThenSum, 0.0, sum_of);
}

std::vector<std::valarray<uint64_t>> CountGradients(
    const TraceStep& step, Accumulation accumulation,
    std::span<const std::vector<uint32_t>> magnitudes) {
  const std::valarray<uint64_t> zero(magnitudes.size());
  return OverBlocks(step, accumulation, zero, [&](size_t tensor, std::span<const float> values) {
    std::valarray<uint64_t> counts = zero;
    for (size_t i = 0; i < counts.size(); ++i) {
      uint32_t count = 0;
      for (const float value : values) {
        count += (std::bit_cast<uint32_t>(value) & ~codec::kSignBit) >= magnitudes[i][tensor];
      }
      counts[i] = count;
    }
    return counts;
  });
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

}  // namespace dlsim
