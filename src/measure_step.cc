// SPDX-License-Identifier: Apache-2.0
#include "dlsim/measure_step.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "chunk_loader.h"
#include "dlsim/measure.h"
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
                std::span<const int64_t> micro_steps, std::span<const StepQuestion> questions,
                const StepOptions& options, const BlockAnswer& answer)
      : step_(step),
        sources_(sources),
        block_(block),
        micro_steps_(micro_steps),
        questions_(questions),
        options_(options),
        loader_(sources, block, options.accumulation),
        answer_(answer) {}

  // Adds the block to its answer, which begins empty.
  void Run() {
    for (size_t begin = 0; begin < block_.count; begin += kChunkElements) {
      begin_ = begin;
      LoadChunks();
      for (size_t q = 0; q < questions_.size(); ++q) MeasureChunks(q);
    }
  }

 private:
  struct PartChunk {
    size_t part;
    std::span<const float> values;
  };

  void LoadChunks() {
    chunks_.clear();
    for (size_t part = 0; part < loader_.part_count(); ++part) {
      if (loader_.Has(part)) chunks_.push_back({part, loader_.Load(part, begin_)});
    }
  }

  Measurement QuestionOfPart(size_t q, size_t part) const {
    Measurement question = {questions_[q].conversion, questions_[q].ScaleOf(block_.tensor), {}};
    if (question.conversion.rounding == Rounding::kStochastic) {
      question.random = {options_.seed,
                         StreamOf(sources_.header.name, step_.step, micro_steps_[part])};
    }
    return question;
  }

  void MeasureChunks(size_t q) {
    const uint64_t index = block_.begin + begin_;
    TensorStats* parts = answer_.parts.data() + q * loader_.part_count();
    if (loader_.part_count() == 1 && !questions_[q].detail) {
      const TensorStats stats = MeasureChunk(chunks_.front().values, index, QuestionOfPart(q, 0));
      parts[0].Merge(stats);
      answer_.effective[q] += stats.quantized_sum_of_squares;
      return;
    }
    sum_.assign(loader_.ChunkLength(begin_), 0.0f);
    scaled_sum_.assign(sum_.size(), 0.0f);
    for (const auto& [part, values] : chunks_) {
      const AccumulatedChunk sums = {std::span(sum_).first(values.size()),
                                     std::span(scaled_sum_).first(values.size())};
      const Measurement question = QuestionOfPart(q, part);
      parts[part].Merge(MeasureAndAccumulateChunk(values, index, question, sums));
    }
    answer_.effective[q] += SumOfSquaresOfChunk(sum_);
    answer_.scaled[q] += SumOfSquaresOfChunk(scaled_sum_);
    if (questions_[q].detail) AddDetail(*questions_[q].detail, answer_.details[q]);
  }

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
  std::span<const int64_t> micro_steps_;  // number of each part
  std::span<const StepQuestion> questions_;
  const StepOptions& options_;
  ChunkLoader loader_;
  std::vector<float> sum_, scaled_sum_;
  std::vector<PartChunk> chunks_;  // of every part that has the tensor
  size_t begin_ = 0;               // of the current chunks in the block
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
  result.micro_steps = PartNumbers(step, options.accumulation);
  for (const TensorSources& tensor : tensors) result.tensors.push_back(tensor.header);
  TensorAnswer empty;
  empty.parts.resize(result.micro_steps.size());
  result.answers.assign(questions, std::vector<TensorAnswer>(tensors.size(), empty));
  return result;
}

}  // namespace

void CounterBrackets::Merge(const CounterBrackets& other) {
  const auto add = [](const auto& from, auto& into) {
    into.low += from.low;
    into.high += from.high;
  };
  add(other.underflow, underflow);
  add(other.subnormal, subnormal);
  add(other.overflow, overflow);
  add(other.underflow_squares, underflow_squares);
}

Bracket<double> CounterBrackets::underflow_fraction(const TensorStats& stats) const {
  const double base = static_cast<double>(std::max<uint64_t>(1, stats.nonzero_finite()));
  return {static_cast<double>(underflow.low) / base, static_cast<double>(underflow.high) / base};
}

Bracket<double> CounterBrackets::energy_lost(const TensorStats& stats) const {
  if (stats.sum_of_squares == 0) return {};
  return {underflow_squares.low / stats.sum_of_squares,
          underflow_squares.high / stats.sum_of_squares};
}

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
      BlockMeasurer(step, sources, wave[i], result.micro_steps, questions, options, answers.Of(i))
          .Run();
    });
    beside_done = true;
    for (size_t i = 0; i < wave.size(); ++i) MergeAnswer(answers.Of(i), wave[i].tensor, result);
  });
  if (!beside_done) options.beside();
  return result;
}

}  // namespace dlsim
