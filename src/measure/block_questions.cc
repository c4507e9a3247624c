// SPDX-License-Identifier: Apache-2.0
#include "src/measure/block_questions.h"

#include <algorithm>

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

}  // namespace dlsim
