// SPDX-License-Identifier: Apache-2.0
// The distinct questions that the runs of a sweep ask at a step, kept from step to step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "sim/sweep/step_answer.h"

namespace dlsim::sim {

class QuestionTable {
 public:
  // Returns the number of a kind.
  size_t KindIndex(const SweepKind& kind);

  // Asks a question for the coming step; returns where At finds its answer. Asking again is cheap.
  size_t Ask(size_t kind, float scale);

  // Asks again what Ask returned for an earlier step.
  void AskAgain(size_t index) {
    Entry& entry = entries_[index];
    if (entry.asked_at == step_) return;
    entry.asked_at = step_;
    asked_.push_back(static_cast<uint32_t>(index));
  }

  // The questions of the coming step.
  const std::vector<uint32_t>& asked() const { return asked_; }
  const SweepQuestion& question(size_t index) const { return entries_[index].question; }

  // Returns the edges to count the step at: `fixed`, or if that is null some that have all
  // thresholds asked for, and stay the same while they do.
  const HistogramEdges& Edges(const HistogramEdges* fixed);

  // Answers all questions of the step.
  void Answer(const StepTotals& totals);
  StepAnswer& At(size_t index) { return answers_[index]; }

  // Begins a step. Returns true if questions that nobody asks any more were forgotten: then what
  // Ask returned before is void.
  bool BeginStep();

 private:
  struct Entry {
    SweepQuestion question;
    uint64_t asked_at = 0;
    uint64_t placed_in = 0;  // version of the edges
  };

  void SetEdges(const HistogramEdges& edges);

  std::vector<SweepKind> kinds_;
  std::vector<std::unordered_map<uint32_t, uint32_t>> index_of_;  // [kind]: scale bits to entry
  std::vector<Entry> entries_;
  std::vector<StepAnswer> answers_;
  std::vector<uint32_t> asked_;
  uint64_t step_ = 0, version_ = 0;
  std::optional<HistogramEdges> own_edges_;
  const HistogramEdges* edges_ = nullptr;
};

}  // namespace dlsim::sim
