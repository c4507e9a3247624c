// SPDX-License-Identifier: Apache-2.0
// The gradients of a profile: histograms of them, of which questions are asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dlsim/profile.h"
#include "dlsim/profile_file.h"
#include "dlsim/sim/gradient_source.h"
#include "dlsim/trace.h"
#include "sim/replay/profile_question.h"

namespace dlsim::sim {

// Questions with their thresholds, shared by all steps. Thread-safe.
class QuestionCache {
 public:
  // Throws UsageError for stochastic rounding.
  std::shared_ptr<const ProfileQuestion> Prepare(const Conversion& conversion, float scale,
                                                 const std::optional<DetailQuestion>& detail);

 private:
  using Questions = std::vector<std::shared_ptr<const ProfileQuestion>>;

  std::mutex mutex_;
  std::map<uint32_t, Questions> by_scale_;  // keys are the bits of scales
  size_t size_ = 0;
};

// Opens a step of which only totals are known.
std::unique_ptr<GradientStep> OpenTotals(ProfileTotals totals);

// Opens a step whose histograms are in memory. `edges`, `questions` and `scaled`, the formats of
// ProfileStep::scaled, must live as long.
std::unique_ptr<GradientStep> OpenProfileStep(ProfileStep step, const HistogramEdges& edges,
                                              QuestionCache& questions,
                                              std::span<const NamedScaledFormat> scaled = {});

// Returns the gradients of the loss itself in the steps that `load` returns, unless a step has no
// other tensors.
std::set<std::string> LossesOf(size_t steps, const std::function<ProfileStep(size_t)>& load);

// Throws InputError if there is no step.
SourceFacts FactsOf(const ProfileReader& profile);

// Throws UsageError if the gradients of data-parallel ranks became one in another way than asked.
void RequireSameRanks(const ProfileReader& profile, const std::optional<RankReduction>& asked);

class ProfileSource final : public GradientSource {
 public:
  // `profile` must live as long as this. Only tensors whose name matches the pattern (fnmatch) are
  // seen.
  ProfileSource(const ProfileReader& profile, std::string tensors);

  // Leaves out gradients of the loss itself from now on, with a note; not the only tensors.
  void LeaveOutLosses();

  const SourceFacts& facts() const override { return facts_; }
  size_t step_count() const override { return profile_.step_count(); }
  const HistogramEdges* edges() const override { return &profile_.edges(); }
  std::unique_ptr<GradientStep> Load(size_t i, StepNeeds needs) const override;

 private:
  const ProfileReader& profile_;
  std::string tensors_;
  std::set<std::string> losses_;  // left out
  SourceFacts facts_;
  mutable QuestionCache questions_;
};

// Keeps the tensors whose name matches a pattern (fnmatch), and of these none of `left_out`.
void KeepTensors(const std::string& pattern, ProfileStep& step,
                 const std::set<std::string>& left_out = {});

}  // namespace dlsim::sim
