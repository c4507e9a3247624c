// SPDX-License-Identifier: Apache-2.0
#include "src/measure/measure_block.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "dlsim/measure.h"
#include "src/measure/chunk_detail.h"
#include "src/measure/chunk_loader.h"
#include "src/measure/measure_chunk.h"

namespace dlsim {
namespace {

Measurement QuestionOfPart(const StepWork& work, const StepQuestion& question, size_t tensor,
                           size_t part) {
  Measurement measurement = {question.conversion, question.ScaleOf(tensor), {}};
  if (measurement.conversion.rounding == Rounding::kStochastic) {
    measurement.random = {work.options->seed, work.StreamOf(tensor, part)};
  }
  return measurement;
}

// The questions about a part of a block, each once, and what was found.
class PartQuestions {
 public:
  PartQuestions(const StepWork& work, size_t tensor, size_t part) {
    for (const StepQuestion& question : work.questions) {
      Add(QuestionOfPart(work, question, tensor, part), question.asked);
    }
  }

  void Measure(ChunkMeasurer& chunk) {
    for (Distinct& distinct : distinct_) {
      distinct.of_chunk = chunk.Measure(distinct.question);
      distinct.total.Merge(distinct.of_chunk);
    }
  }

  const Measurement& measurement(size_t q) const {
    return distinct_[place_[q]].question.measurement();
  }
  const TensorStats& of_chunk(size_t q) const { return distinct_[place_[q]].of_chunk; }
  const TensorStats& total(size_t q) const { return distinct_[place_[q]].total; }

 private:
  struct Distinct {
    ChunkQuestion question;
    TensorStats of_chunk, total;
  };

  void Add(const Measurement& measurement, Asked asked) {
    // All are of one random stream.
    const auto found = std::ranges::find_if(distinct_, [&](const Distinct& distinct) {
      const Measurement& other = distinct.question.measurement();
      return other.scale == measurement.scale && other.conversion == measurement.conversion;
    });
    place_.push_back(static_cast<size_t>(found - distinct_.begin()));
    if (found == distinct_.end()) {
      distinct_.push_back({ChunkQuestion(measurement, asked), {}, {}});
    } else if (asked == Asked::kAll) {
      found->question.AskAll();
    }
  }

  std::vector<Distinct> distinct_;
  std::vector<size_t> place_;  // by question
};

// Measures one block of a tensor that has one part.
class WholeBlockMeasurer {
 public:
  WholeBlockMeasurer(const StepWork& work, const Block& block, ChunkLoader& loader,
                     const BlockAnswer& answer)
      : block_(block), loader_(loader), questions_(work, block.tensor, 0), answer_(answer) {
    for (size_t q = 0; q < work.questions.size(); ++q) {
      const std::optional<DetailQuestion>& detail = work.questions[q].detail;
      if (detail) details_.push_back({q, ChunkDetail(*detail, questions_.measurement(q))});
    }
  }

  void Run() {
    for (size_t begin = 0; begin < block_.count; begin += kChunkElements) {
      const std::span<const float> values = loader_.Load(0, begin);
      ChunkMeasurer chunk(values, block_.begin + begin);
      questions_.Measure(chunk);
      for (Detail& detail : details_) {
        answer_.details[detail.question].Merge(detail.of_chunk.Find(
            values, block_.begin + begin, chunk.inputs(), questions_.of_chunk(detail.question)));
      }
    }
    for (size_t q = 0; q < answer_.parts.size(); ++q) {
      answer_.parts[q] = questions_.total(q);
      answer_.effective[q] = questions_.total(q).quantized_sum_of_squares;
    }
    for (const Detail& detail : details_) {
      // Of finite elements it is finite.
      const bool finite = questions_.total(detail.question).nonfinite_outputs == 0;
      answer_.scaled[detail.question] = finite ? 0 : std::numeric_limits<double>::infinity();
    }
  }

 private:
  struct Detail {
    size_t question;
    ChunkDetail of_chunk;
  };

  const Block& block_;
  ChunkLoader& loader_;
  PartQuestions questions_;
  std::vector<Detail> details_;  // of the questions that ask for it
  const BlockAnswer& answer_;
};

// Measures one block of a tensor that has several parts.
class PartedBlockMeasurer {
 public:
  PartedBlockMeasurer(const StepWork& work, const Block& block, ChunkLoader& loader,
                      const BlockAnswer& answer)
      : work_(work), block_(block), loader_(loader), answer_(answer) {
    for (const StepQuestion& question : work.questions) {
      for (size_t part = 0; part < loader.part_count(); ++part) {
        questions_.emplace_back(QuestionOfPart(work, question, block.tensor, part), question.asked);
      }
    }
  }

  void Run() {
    for (size_t begin = 0; begin < block_.count; begin += kChunkElements) {
      begin_ = begin;
      LoadChunks();
      for (size_t q = 0; q < work_.questions.size(); ++q) MeasureChunks(q);
    }
  }

 private:
  struct PartChunk {
    size_t part, count;
    ChunkMeasurer chunk;
  };

  void LoadChunks() {
    chunks_.clear();
    for (size_t part = 0; part < loader_.part_count(); ++part) {
      if (!loader_.Has(part)) continue;
      const std::span<const float> values = loader_.Load(part, begin_);
      chunks_.push_back({part, values.size(), ChunkMeasurer(values, block_.begin + begin_)});
    }
  }

  void MeasureChunks(size_t q) {
    const StepQuestion& question = work_.questions[q];
    const size_t first = q * loader_.part_count();
    sum_.assign(loader_.ChunkLength(begin_), 0.0f);
    scaled_sum_.assign(sum_.size(), 0.0f);
    for (auto& [part, count, chunk] : chunks_) {
      const ChunkQuestion& of_part = questions_[first + part];
      const AccumulatedChunk sums = {std::span(sum_).first(count),
                                     std::span(scaled_sum_).first(count)};
      answer_.parts[first + part].Merge(question.asked == Asked::kErrors
                                            ? chunk.Measure(of_part)
                                            : chunk.MeasureAndAccumulate(of_part, sums));
    }
    if (question.asked == Asked::kErrors) return;
    answer_.effective[q] += SumOfSquaresOfChunk(sum_);
    answer_.scaled[q] += SumOfSquaresOfChunk(scaled_sum_);
    if (question.detail) {
      answer_.details[q].Merge(DetailOf(*question.detail, sum_, scaled_sum_));
    }
  }

  const StepWork& work_;
  const Block& block_;
  ChunkLoader& loader_;
  std::vector<float> sum_, scaled_sum_;
  std::vector<PartChunk> chunks_;         // of every part that has the tensor
  size_t begin_ = 0;                      // of the current chunks in the block
  std::vector<ChunkQuestion> questions_;  // by question, then by part
  const BlockAnswer& answer_;
};

}  // namespace

void MeasureBlock(const StepWork& work, const Block& block, const BlockAnswer& answer) {
  ChunkLoader loader((*work.tensors)[block.tensor], block, work.options->accumulation);
  if (loader.part_count() == 1) {
    WholeBlockMeasurer(work, block, loader, answer).Run();
  } else {
    PartedBlockMeasurer(work, block, loader, answer).Run();
  }
}

}  // namespace dlsim
