// SPDX-License-Identifier: Apache-2.0
#include "src/measure/measure_block.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "dlsim/measure.h"
#include "src/measure/chunk_loader.h"
#include "src/measure/measure_chunk.h"

namespace dlsim {
namespace {

// Measures one block; owns the buffers of one thread's work.
class BlockMeasurer {
 public:
  BlockMeasurer(const StepWork& work, const Block& block, const BlockAnswer& answer)
      : work_(work),
        sources_((*work.tensors)[block.tensor]),
        block_(block),
        questions_(work.questions),
        loader_(sources_, block, work.options->accumulation),
        answer_(answer) {}

  // Adds the block to its answer, which begins empty.
  void Run() {
    for (size_t begin = 0; begin < block_.count; begin += kChunkElements) {
      begin_ = begin;
      LoadChunks();
      ChunkInputs inputs;
      if (loader_.part_count() == 1) inputs = MeasureInputs(chunks_.front().values);
      for (size_t q = 0; q < questions_.size(); ++q) MeasureChunks(q, inputs);
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
      question.random = {work_.options->seed, work_.StreamOf(block_.tensor, part)};
    }
    return question;
  }

  // `inputs` of the chunk where there is one part.
  void MeasureChunks(size_t q, const ChunkInputs& inputs) {
    const uint64_t index = block_.begin + begin_;
    TensorStats* parts = answer_.parts.data() + q * loader_.part_count();
    if (loader_.part_count() == 1 && !questions_[q].detail) {
      const TensorStats stats =
          MeasureChunk(chunks_.front().values, index, QuestionOfPart(q, 0), inputs);
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
      const bool replaces = unscaled > detail.absmax || std::isnan(unscaled);  // and NaN stays
      detail.absmax = replaces ? unscaled : detail.absmax;
      detail.below_edge += scaled < question.edge ? 1 : 0;
      detail.above_edge += scaled >= question.edge ? 1 : 0;
      detail.above_limit += (limit_unscaled ? unscaled : scaled) > question.limit ? 1 : 0;
    }
    detail.elements = sum_.size();
    if (!std::isfinite(detail.absmax)) detail.absmax = std::numeric_limits<float>::infinity();
    into.Merge(detail);
  }

  const StepWork& work_;
  const TensorSources& sources_;
  const Block& block_;
  std::span<const StepQuestion> questions_;
  ChunkLoader loader_;
  std::vector<float> sum_, scaled_sum_;
  std::vector<PartChunk> chunks_;  // of every part that has the tensor
  size_t begin_ = 0;               // of the current chunks in the block
  BlockAnswer answer_;
};

}  // namespace

void MeasureBlock(const StepWork& work, const Block& block, const BlockAnswer& answer) {
  BlockMeasurer(work, block, answer).Run();
}

}  // namespace dlsim
