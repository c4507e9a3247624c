// SPDX-License-Identifier: Apache-2.0
#include "src/measure/measure_block.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "dlsim/measure.h"
#include "src/measure/chunk_loader.h"

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

bool IsByTensor(const StepQuestion& question) {
  return !question.tensor_scales.empty() || question.conversion.rounding == Rounding::kStochastic;
}

// Measures one block of a tensor that has one part.
class WholeBlockMeasurer {
 public:
  WholeBlockMeasurer(const BlockQuestions& questions, const Block& block, ChunkLoader& loader,
                     const BlockAnswer& answer)
      : questions_(questions),
        block_(block),
        loader_(loader),
        found_(questions.distinct().size()),
        details_(questions.details()),
        answer_(answer) {}

  void Run() {
    for (size_t begin = 0; begin < block_.count; begin += kChunkElements) MeasureChunk(begin);
    for (size_t q = 0; q < answer_.parts.size(); ++q) {
      answer_.parts[q] = Of(q).total;
      answer_.effective[q] = Of(q).total.quantized_sum_of_squares;
    }
    for (const BlockQuestions::Detail& detail : details_) {
      // Of finite elements it is finite.
      const bool finite = Of(detail.question).total.nonfinite_outputs == 0;
      answer_.scaled[detail.question] = finite ? 0 : std::numeric_limits<double>::infinity();
    }
  }

 private:
  // What a distinct question was answered.
  struct Found {
    TensorStats of_chunk, total;
  };

  const Found& Of(size_t question) const { return found_[questions_.PlaceOf(question, 0)]; }

  void MeasureChunk(size_t begin) {
    const std::span<const float> values = loader_.Load(0, begin);
    ChunkMeasurer chunk(values, block_.begin + begin);
    for (size_t d = 0; d < found_.size(); ++d) {
      found_[d].of_chunk = chunk.Measure(questions_.distinct()[d]);
      found_[d].total.Merge(found_[d].of_chunk);
    }
    for (BlockQuestions::Detail& detail : details_) {
      answer_.details[detail.question].Merge(detail.of_chunk.Find(
          values, block_.begin + begin, chunk.inputs(), Of(detail.question).of_chunk));
    }
  }

  const BlockQuestions& questions_;
  const Block& block_;
  ChunkLoader& loader_;
  std::vector<Found> found_;  // by distinct question
  std::vector<BlockQuestions::Detail> details_;
  const BlockAnswer& answer_;
};

// Measures one block of a tensor that has several parts.
class PartedBlockMeasurer {
 public:
  PartedBlockMeasurer(std::span<const StepQuestion> asked, const BlockQuestions& questions,
                      const Block& block, ChunkLoader& loader, const BlockAnswer& answer)
      : asked_(asked), questions_(questions), block_(block), loader_(loader), answer_(answer) {}

  void Run() {
    for (size_t begin = 0; begin < block_.count; begin += kChunkElements) {
      begin_ = begin;
      LoadChunks();
      for (size_t q = 0; q < asked_.size(); ++q) MeasureChunks(q);
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
    const StepQuestion& question = asked_[q];
    const size_t first = q * loader_.part_count();
    sum_.assign(loader_.ChunkLength(begin_), 0.0f);
    scaled_sum_.assign(sum_.size(), 0.0f);
    for (auto& [part, count, chunk] : chunks_) {
      const ChunkQuestion& of_part = questions_.distinct()[questions_.PlaceOf(q, part)];
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

  std::span<const StepQuestion> asked_;
  const BlockQuestions& questions_;
  const Block& block_;
  ChunkLoader& loader_;
  std::vector<float> sum_, scaled_sum_;
  std::vector<PartChunk> chunks_;  // of every part that has the tensor
  size_t begin_ = 0;               // of the current chunks in the block
  const BlockAnswer& answer_;
};

}  // namespace

BlockQuestions::BlockQuestions(const StepWork& work)
    : parts_(work.micro_steps.size()), places_(work.questions.size() * parts_) {
  for (size_t q = 0; q < work.questions.size(); ++q) {
    if (IsByTensor(work.questions[q])) {
      by_tensor_ = true;
    } else {
      Add(work, q, 0);
    }
  }
}

void BlockQuestions::AddOfTensor(const StepWork& work, size_t tensor) {
  for (size_t q = 0; q < work.questions.size(); ++q) {
    if (IsByTensor(work.questions[q])) Add(work, q, tensor);
  }
}

void BlockQuestions::Add(const StepWork& work, size_t question, size_t tensor) {
  const StepQuestion& asked = work.questions[question];
  for (size_t part = 0; part < parts_; ++part) {
    places_[question * parts_ + part] =
        AddDistinct(QuestionOfPart(work, asked, tensor, part), asked.asked);
  }
  if (!asked.detail || parts_ > 1) return;
  const Measurement& measurement = distinct_[PlaceOf(question, 0)].measurement();
  details_.push_back({question, ChunkDetail(*asked.detail, measurement)});
}

size_t BlockQuestions::AddDistinct(const Measurement& measurement, Asked asked) {
  const auto found = std::ranges::find_if(distinct_, [&](const ChunkQuestion& question) {
    const Measurement& other = question.measurement();
    return other.scale == measurement.scale && other.conversion == measurement.conversion &&
           other.random.stream == measurement.random.stream;
  });
  const auto place = static_cast<size_t>(found - distinct_.begin());
  if (found == distinct_.end()) {
    distinct_.emplace_back(measurement, asked);
  } else if (asked == Asked::kAll) {
    found->AskAll();
  }
  return place;
}

BlockMeasurer::BlockMeasurer(const StepWork& work, StepChannels* channels)
    : work_(work), questions_(work), channels_(channels) {}

void BlockMeasurer::Measure(const Block& block, const BlockAnswer& answer) const {
  std::optional<BlockQuestions> of_tensor;
  if (questions_.by_tensor()) {
    of_tensor = questions_;
    of_tensor->AddOfTensor(work_, block.tensor);
  }
  const BlockQuestions& questions = of_tensor ? *of_tensor : questions_;
  const bool counts_channels = channels_ != nullptr && channels_->Counts(block.tensor);
  ChunkLoader loader((*work_.tensors)[block.tensor], block, work_.options->accumulation,
                     counts_channels ? ChunkLoader::Chunks::kKeep : ChunkLoader::Chunks::kDrop);
  if (loader.part_count() == 1) {
    WholeBlockMeasurer(questions, block, loader, answer).Run();
  } else {
    PartedBlockMeasurer(work_.questions, questions, block, loader, answer).Run();
  }
  if (counts_channels) channels_->Add(block, loader);
}

}  // namespace dlsim
