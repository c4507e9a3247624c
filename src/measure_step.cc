// SPDX-License-Identifier: Apache-2.0
#include "dlsim/measure_step.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "dlsim/measure.h"
#include "load_floats.h"
#include "parallel.h"
#include "step_blocks.h"

namespace dlsim {
namespace {

// What a block contributes to the answers.
struct BlockAnswer {
  std::span<TensorStats> parts;       // [question * part_count + part]
  std::span<double> effective;        // [question]
  std::span<double> scaled;           // [question]: sum of squares of the still scaled sums
  std::span<GradientDetail> details;  // [question]
};

// The answers of the blocks that are measured together.
class WaveAnswers {
 public:
  WaveAnswers(size_t blocks, size_t questions, size_t parts)
      : questions_(questions),
        parts_per_block_(questions * parts),
        parts_(blocks * parts_per_block_),
        sums_(blocks * 2 * questions_),
        details_(blocks * questions_) {}

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

// Measures one block; owns the buffers of one thread's work.
class BlockMeasurer {
 public:
  BlockMeasurer(const TraceStep& step, const TensorSources& sources, const Block& block,
                std::span<const StepQuestion> questions, const StepOptions& options,
                const BlockAnswer& answer)
      : step_(step),
        sources_(sources),
        block_(block),
        questions_(questions),
        options_(options),
        answer_(answer) {
    for (size_t r = 0; r < block.bytes.size(); ++r) {
      if (block.bytes[r] != nullptr) present_.push_back(r);
    }
  }

  // Adds the block to its answer, which begins empty.
  void Run() {
    for (size_t begin = 0; begin < block_.count; begin += kChunkElements) {
      begin_ = begin;
      LoadChunks(std::min(kChunkElements, block_.count - begin));
      if (SumsFirst()) SumChunks();
      for (size_t q = 0; q < questions_.size(); ++q) MeasureChunks(q);
    }
  }

 private:
  bool SumsFirst() const {
    return options_.accumulation == Accumulation::kSumThenQuantize && block_.bytes.size() > 1;
  }
  size_t PartCount() const { return SumsFirst() ? 1 : block_.bytes.size(); }

  // Makes chunks_ the float32 values of every recording that has the tensor. Activations may be
  // shorter in some micro-steps: then their chunks are, down to empty.
  void LoadChunks(size_t count) {
    chunks_.clear();
    for (size_t i = 0; i < present_.size(); ++i) {
      const Source& source = sources_.recordings[present_[i]];
      const uint64_t at = block_.begin + begin_;
      const uint64_t rest = source.tensor->elements - std::min(source.tensor->elements, at);
      const size_t length = static_cast<size_t>(std::min<uint64_t>(count, rest));
      const DType dtype = source.tensor->dtype;
      const std::byte* from = block_.bytes[present_[i]] + begin_ * DTypeSize(dtype);
      const bool aligned = reinterpret_cast<uintptr_t>(from) % alignof(float) == 0;
      if (dtype == DType::kF32 && aligned && source.grad_scale == 1.0f) {
        chunks_.emplace_back(reinterpret_cast<const float*>(from), length);
        continue;
      }
      converted_.resize(present_.size() * kChunkElements);  // once, where conversion is needed
      const std::span<float> buffer(converted_.data() + i * kChunkElements, length);
      LoadFloats(dtype, from, source.grad_scale, buffer);
      chunks_.emplace_back(buffer);
    }
    longest_ = count;
  }

  // Replaces the chunks by their float32 sum.
  void SumChunks() {
    sum_.assign(longest_, 0.0f);
    for (const std::span<const float> chunk : chunks_) {
      for (size_t i = 0; i < chunk.size(); ++i) sum_[i] += chunk[i];
    }
    chunks_.assign(1, sum_);
  }

  Measurement QuestionOfPart(size_t q, int64_t micro) const {
    Measurement question = {questions_[q].conversion, questions_[q].ScaleOf(block_.tensor), {}};
    if (question.conversion.rounding == Rounding::kStochastic) {
      question.random = {options_.seed, StreamOf(sources_.header.name, step_.step, micro)};
    }
    return question;
  }

  void MeasureChunks(size_t q) {
    const uint64_t index = block_.begin + begin_;
    TensorStats* parts = answer_.parts.data() + q * PartCount();
    if (PartCount() == 1 && !questions_[q].detail) {
      const TensorStats stats = MeasureChunk(chunks_.front(), index, QuestionOfPart(q, MicroOf(0)));
      parts[0].Merge(stats);
      answer_.effective[q] += stats.quantized_sum_of_squares;
      return;
    }
    sum_.assign(longest_, 0.0f);
    scaled_sum_.assign(longest_, 0.0f);
    for (size_t i = 0; i < chunks_.size(); ++i) {
      const size_t size = chunks_[i].size();
      const AccumulatedChunk sums = {std::span(sum_).first(size),
                                     std::span(scaled_sum_).first(size)};
      TensorStats& part = parts[SumsFirst() ? 0 : present_[i]];
      part.Merge(MeasureAndAccumulateChunk(chunks_[i], index, QuestionOfPart(q, MicroOf(i)), sums));
    }
    answer_.effective[q] += SumOfSquaresOfChunk(sum_);
    answer_.scaled[q] += SumOfSquaresOfChunk(scaled_sum_);
    if (questions_[q].detail) AddDetail(*questions_[q].detail, answer_.details[q]);
  }

  // Number of the micro-step of the i-th chunk.
  int64_t MicroOf(size_t i) const { return SumsFirst() ? -1 : step_.recordings[present_[i]].micro; }

  // Looks at the sums of the current chunks.
  void AddDetail(const DetailQuestion& question, GradientDetail& into) const {
    const bool limit_unscaled = question.limit_domain == ClipDomain::kUnscaled;
    GradientDetail detail;
    for (size_t i = 0; i < sum_.size(); ++i) {
      const float unscaled = std::fabs(sum_[i]), scaled = std::fabs(scaled_sum_[i]);
      detail.scaled_sum += double{scaled_sum_[i]};
      detail.scaled_sum_of_squares += double{scaled} * double{scaled};
      detail.absmax = unscaled <= detail.absmax ? detail.absmax : unscaled;  // keeps NaN
      detail.below_edge += scaled < question.edge ? 1 : 0;
      detail.above_edge += scaled >= question.edge ? 1 : 0;
      detail.above_limit += (limit_unscaled ? unscaled : scaled) > question.limit ? 1 : 0;
    }
    detail.elements = sum_.size();
    if (!std::isfinite(detail.absmax)) detail.absmax = std::numeric_limits<float>::infinity();
    into.Merge(detail);
  }

  const TraceStep& step_;
  const TensorSources& sources_;
  const Block& block_;
  std::span<const StepQuestion> questions_;
  const StepOptions& options_;
  std::vector<size_t> present_;  // recordings that have the tensor
  std::vector<float> converted_, sum_, scaled_sum_;
  std::vector<std::span<const float>> chunks_;
  size_t begin_ = 0;    // of the current chunk in the block
  size_t longest_ = 0;  // elements of the longest current chunk
  BlockAnswer answer_;
};

// Adds the answer of a block to its tensor; called in block order.
void MergeAnswer(const BlockAnswer& from, size_t tensor, StepMeasurement& into) {
  const size_t parts = into.micro_steps.size();
  for (size_t q = 0; q < into.answers.size(); ++q) {
    TensorAnswer& answer = into.answers[q][tensor];
    answer.effective_sum_of_squares += from.effective[q];
    answer.scaled_sum_finite &= std::isfinite(from.scaled[q]);
    answer.detail.Merge(from.details[q]);
    for (size_t p = 0; p < parts; ++p) answer.parts[p].Merge(from.parts[q * parts + p]);
  }
}

StepMeasurement EmptyMeasurement(const TraceStep& step, const std::vector<TensorSources>& tensors,
                                 size_t questions, const StepOptions& options) {
  StepMeasurement result;
  const bool sums_first = options.accumulation == Accumulation::kSumThenQuantize;
  if (sums_first && step.recordings.size() > 1) {
    result.micro_steps = {-1};
  } else {
    for (const Recording& recording : step.recordings) {
      result.micro_steps.push_back(recording.micro);
    }
  }
  for (const TensorSources& tensor : tensors) result.tensors.push_back(tensor.header);
  TensorAnswer empty;
  empty.parts.resize(result.micro_steps.size());
  result.answers.assign(questions, std::vector<TensorAnswer>(tensors.size(), empty));
  return result;
}

}  // namespace

void GradientDetail::Merge(const GradientDetail& later) {
  scaled_sum += later.scaled_sum;
  scaled_sum_of_squares += later.scaled_sum_of_squares;
  absmax = std::fmax(absmax, later.absmax);
  below_edge += later.below_edge;
  above_edge += later.above_edge;
  above_limit += later.above_limit;
  elements += later.elements;
}

std::vector<StepTensor> TensorsOf(const TraceStep& step) {
  std::vector<StepTensor> tensors;
  for (const TensorSources& sources : CollectTensors(step)) tensors.push_back(sources.header);
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

StepMeasurement MeasureStep(const TraceStep& step, std::span<const StepQuestion> questions,
                            const StepOptions& options) {
  const std::vector<TensorSources> tensors = CollectTensors(step);
  StepMeasurement result = EmptyMeasurement(step, tensors, questions.size(), options);
  bool beside_done = !options.beside;
  ForEachWave(step.recordings, tensors, [&](std::span<const Block> wave) {
    WaveAnswers answers(wave.size(), questions.size(), result.micro_steps.size());
    // The work beside comes first, so that the blocks fill the other threads meanwhile.
    const size_t beside = beside_done ? 0 : 1;
    ParallelFor(wave.size() + beside, [&](size_t task) {
      if (task < beside) return options.beside();
      const size_t i = task - beside;
      const TensorSources& sources = tensors[wave[i].tensor];
      BlockMeasurer(step, sources, wave[i], questions, options, answers.Of(i)).Run();
    });
    beside_done = true;
    for (size_t i = 0; i < wave.size(); ++i) MergeAnswer(answers.Of(i), wave[i].tensor, result);
  });
  if (!beside_done) options.beside();
  return result;
}

}  // namespace dlsim
