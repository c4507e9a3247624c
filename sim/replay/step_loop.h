// SPDX-License-Identifier: Apache-2.0
// The loop over the steps of a source. Replays, sweeps and tables of scales are its consumers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "dlsim/sim/gradient_source.h"

namespace dlsim::sim {

// Returns how many questions may be asked at once of a step with `tensors` tensors: more answers
// would take more than a quarter of the memory, and wait for another pass.
size_t QuestionsAtOnce(size_t tensors, uint64_t memory_bytes);

// The questions of all consumers about one step, each question once.
class StepQuestions {
 public:
  // `most`: with that many, those who can wait for another pass add no more.
  explicit StepQuestions(size_t most = std::numeric_limits<size_t>::max()) : most_(most) {}

  bool IsFull() const { return all_.size() >= most_; }

  // Whether the question was added, or one that differs only in StepQuestion::asked.
  bool Has(const StepQuestion& question) const { return PlaceOf(question) < all_.size(); }

  // Returns the place of the question, which is that of its answer in StepMeasurement::answers.
  size_t Add(StepQuestion question);

  // Asks for the forward tensors in a conversion. Returns the place of its answer in
  // MeasuredStep::forward.
  size_t AddForward(const Conversion& conversion);

  // Asks what the channels of gradients lose.
  void AddChannels() { channels_ = true; }

  const std::vector<StepQuestion>& all() const { return all_; }
  const std::vector<Conversion>& forward() const { return forward_; }
  bool channels() const { return channels_; }

 private:
  // Returns the index of such a question, or the number of questions if it was not added.
  size_t PlaceOf(const StepQuestion& question) const;

  size_t most_;
  std::vector<StepQuestion> all_;
  std::vector<Conversion> forward_;
  bool channels_ = false;
};

// What was asked of one step: of its gradients, and of its forward tensors at scale 1. The latter
// are apart so that nothing takes them for gradients.
struct MeasuredStep {
  StepMeasurement gradients;  // empty if nobody needed it
  StepMeasurement forward;    // see MeasureForward; empty if nobody asked
};

// A consumer of the step loop: asks questions about each step, and receives the answers. The calls
// of a step come in the order of their declarations.
class StepConsumer {
 public:
  virtual ~StepConsumer() = default;

  // False: no further step is needed.
  virtual bool going() const { return true; }

  // What the steps that are not open yet have to be opened for.
  virtual StepNeeds needs() const { return StepNeeds::kTensors; }

  // Returns edges to count the totals of the coming step at; null: none are counted.
  virtual const HistogramEdges* Edges() { return nullptr; }
  virtual void TakeTotals(ProfileTotals /*totals*/) {}

  // Adds its questions to the step. Returns false if it needs no measurement.
  virtual bool Ask(const GradientStep& /*step*/, StepQuestions& /*questions*/) { return false; }

  // Receives the answers of effective step i.
  virtual void Advance(size_t i, const GradientStep& step, const MeasuredStep& measured) = 0;
};

// Several consumers of the same steps; at most one of them counts totals.
class ConsumerGroup final : public StepConsumer {
 public:
  // They must live as long as the group.
  explicit ConsumerGroup(std::vector<StepConsumer*> members) : members_(std::move(members)) {}

  bool going() const override;
  StepNeeds needs() const override;
  const HistogramEdges* Edges() override;
  void TakeTotals(ProfileTotals totals) override;
  bool Ask(const GradientStep& step, StepQuestions& questions) override;
  void Advance(size_t i, const GradientStep& step, const MeasuredStep& measured) override;

 private:
  std::vector<StepConsumer*> members_;
  StepConsumer* counts_totals_ = nullptr;
};

// Passes each step to the consumer. While one step is measured, the one before is closed and the
// next one opened, unless the two have more tensors than StepOptions::memory_bytes holds. Small
// steps are measured ahead, as many at once as StepOptions::memory_bytes holds, for what the latest
// step was asked; what a step is asked besides is measured when it is its turn. Throws Error for a
// bad file.
void ForEachStep(const GradientSource& source, const StepOptions& options, StepConsumer& consumer);

}  // namespace dlsim::sim
