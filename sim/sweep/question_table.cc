// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/question_table.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace dlsim::sim {
namespace {

// Scales that follow the gradients are new at every step: their questions must not pile up.
constexpr size_t kMaxIdle = 8192;

}  // namespace

size_t QuestionTable::KindIndex(const SweepKind& kind) {
  const auto found = std::find(kinds_.begin(), kinds_.end(), kind);
  if (found != kinds_.end()) return static_cast<size_t>(found - kinds_.begin());
  kinds_.push_back(kind);
  index_of_.emplace_back();
  return kinds_.size() - 1;
}

size_t QuestionTable::Ask(size_t kind, float scale) {
  const auto [place, added] = index_of_[kind].try_emplace(std::bit_cast<uint32_t>(scale),
                                                          static_cast<uint32_t>(entries_.size()));
  if (added) {
    entries_.push_back({SweepQuestion(kinds_[kind], scale)});
    answers_.emplace_back();
  }
  AskAgain(place->second);
  return place->second;
}

bool QuestionTable::BeginStep() {
  const bool forget = entries_.size() > 2 * asked_.size() + kMaxIdle;
  ++step_;
  asked_.clear();
  if (!forget) return false;
  entries_.clear();
  answers_.clear();
  for (auto& index : index_of_) index.clear();
  return true;
}

const HistogramEdges& QuestionTable::Edges(const HistogramEdges* fixed) {
  if (fixed != nullptr) {
    if (edges_ != fixed) SetEdges(*fixed);
    return *fixed;
  }
  std::vector<uint32_t> needed;
  for (const uint32_t index : asked_) {
    const std::vector<uint32_t> bits = entries_[index].question.ThresholdBits();
    needed.insert(needed.end(), bits.begin(), bits.end());
  }
  std::sort(needed.begin(), needed.end());
  needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
  if (!needed.empty() && needed.front() == 0) needed.erase(needed.begin());
  const bool enough =
      own_edges_ && std::includes(own_edges_->bits().begin(), own_edges_->bits().end(),
                                  needed.begin(), needed.end());
  // Edges that nobody needs any more cost time.
  constexpr size_t kAlways = 256;
  if (enough && own_edges_->bits().size() <= 2 * (needed.size() + kAlways)) return *own_edges_;
  own_edges_.emplace(std::move(needed));
  SetEdges(*own_edges_);
  return *own_edges_;
}

void QuestionTable::SetEdges(const HistogramEdges& edges) {
  edges_ = &edges;
  ++version_;
}

void QuestionTable::Answer(const StepTotals& totals) {
  for (const uint32_t index : asked_) {
    Entry& entry = entries_[index];
    if (entry.placed_in != version_) {
      entry.question.PlaceIn(*edges_);
      entry.placed_in = version_;
    }
    answers_[index] = entry.question.Answer(totals);
  }
}

}  // namespace dlsim::sim
