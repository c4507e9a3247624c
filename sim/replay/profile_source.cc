// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/profile_source.h"

#include <fnmatch.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "dlsim/error.h"
#include "sim/replay/loss_tensors.h"
#include "sim/replay/trace_notes.h"
#include "src/base/check.h"
#include "src/base/parallel_side_task.h"
#include "src/profile/part_code.h"
#include "src/trace/listed_names.h"

namespace dlsim::sim {
namespace {

// A policy may compute ever new scales; beyond this number of questions the cache is emptied.
constexpr size_t kMostQuestions = size_t{1} << 16;

// How many elements are looked at in the time of an answer, some microsecond.
constexpr uint64_t kLooksPerAnswer = 5000;

class OpenedStep final : public GradientStep {
 public:
  OpenedStep(ProfileStep step, const HistogramEdges& edges,
             std::span<const NamedScaledFormat> scaled, QuestionCache& questions)
      : step_(std::move(step)), scaled_(scaled), questions_(questions) {
    for (size_t t = 0; t < step_.tensors.size(); ++t) {
      const ProfileTensor& tensor = step_.tensors[t];
      PassTensors& of_pass = IsForward(tensor.role) ? forward_ : gradients_;
      of_pass.headers.push_back({tensor.name, tensor.role});
      if (IsGradient(tensor.role) && !step_.channels.empty()) {
        channels_.push_back(std::move(step_.channels[t]));
      }
      std::vector<HistogramIndex>& parts = of_pass.indexes.emplace_back();
      for (const std::vector<Histogram>& part : step_.histograms) {
        parts.emplace_back(part[t], edges);
      }
    }
  }

  int64_t number() const override { return step_.step; }
  bool HasBrokenLoss() const override { return sim::HasBrokenLoss(step_.metadata); }
  RefusedSteps RefusedBefore() const override { return RefusedStepsIn(step_.metadata); }
  std::set<std::string> Listed(std::string_view key) const override {
    return ListedIn(step_.metadata, key);
  }

  std::string Metadata(std::string_view key) const override {
    const auto found = step_.metadata.find(std::string(key));
    return found == step_.metadata.end() ? "" : found->second;
  }

  std::vector<StepTensor> Tensors() const override { return gradients_.headers; }

  std::vector<GradientSpread> Spreads() const override {
    if (step_.histograms.size() < step_.files.size()) {
      throw UsageError("policy", "needs each micro-step, but the profile has only their sum",
                       "the trace itself");
    }
    std::vector<GradientSpread> spreads;
    for (const std::vector<HistogramIndex>& parts : gradients_.indexes)
      spreads.push_back(SpreadOf(parts));
    return spreads;
  }

  ProfileTotals Totals(const HistogramEdges& /*edges*/, const StepOptions& /*options*/) override {
    return TotalsOf(step_);
  }

  StepMeasurement Measure(std::span<const StepQuestion> questions,
                          const StepOptions& options) const override {
    StepMeasurement measured = Answer(gradients_, questions);
    if (options.channels) measured.channels = channels_;
    return measured;
  }

  StepMeasurement MeasureForward(std::span<const Conversion> conversions,
                                 const StepOptions& /*options*/) const override {
    std::vector<StepQuestion> questions;
    for (const Conversion& conversion : conversions) {
      questions.push_back({.conversion = conversion});
    }
    return Answer(forward_, questions);
  }

  ScaledTensors MeasureScaled(std::span<const NamedScaledFormat> formats,
                              const ScaleOfTensor& /*scale*/) const override {
    ScaledTensors found = {step_.tensors, {}};
    for (const NamedScaledFormat& format : formats) {
      const auto held = std::ranges::find(scaled_, format.format, &NamedScaledFormat::format);
      DLSIM_CHECK(held != scaled_.end());
      found.losses.push_back(step_.scaled[static_cast<size_t>(held - scaled_.begin())]);
    }
    return found;
  }

 private:
  // The tensors of one pass.
  struct PassTensors {
    std::vector<StepTensor> headers;
    std::vector<std::vector<HistogramIndex>> indexes;  // [tensor][part]
  };

  StepMeasurement Answer(const PassTensors& pass, std::span<const StepQuestion> questions) const {
    StepMeasurement measured;
    measured.micro_steps = step_.micro_steps;
    measured.tensors = pass.headers;
    const size_t tensors = pass.indexes.size();
    using Prepared = std::vector<std::shared_ptr<const ProfileQuestion>>;
    std::vector<Prepared> prepared;
    for (const StepQuestion& question : questions) {
      Prepared& of_tensors = prepared.emplace_back();
      for (size_t t = 0; t < (question.tensor_scales.empty() ? 1 : tensors); ++t) {
        of_tensors.push_back(
            questions_.Prepare(question.conversion, question.ScaleOf(t), question.detail));
      }
      measured.answers.emplace_back(tensors);
    }
    ParallelForWithSideTask(
        tensors,
        [&](size_t t) {
          for (size_t q = 0; q < prepared.size(); ++q) {
            measured.answers[q][t] = prepared[q][t % prepared[q].size()]->Answer(pass.indexes[t]);
          }
        },
        tensors * questions.size() * kLooksPerAnswer);
    return measured;
  }

  static GradientSpread SpreadOf(const std::vector<HistogramIndex>& parts) {
    double count = 0, sum = 0, squares = 0;
    float absmax = 0;
    for (const HistogramIndex& part : parts) {
      const TensorStats input = InputOf(part);
      count += static_cast<double>(input.elements - input.nan - input.inf);
      sum += part.histogram().sum;
      squares += input.sum_of_squares;
      absmax = std::fmax(absmax, input.absmax);
    }
    if (count == 0) return {};
    const double mean = sum / count;
    return {absmax, std::sqrt(std::max(0.0, squares / count - mean * mean))};
  }

  ProfileStep step_;
  std::span<const NamedScaledFormat> scaled_;
  QuestionCache& questions_;
  std::vector<ChannelCurves> channels_;  // of gradients
  PassTensors gradients_, forward_;
};

// Has no tensors to ask about.
class OpenedTotals final : public GradientStep {
 public:
  explicit OpenedTotals(ProfileTotals totals) : step_(totals.step), totals_(std::move(totals)) {}

  int64_t number() const override { return step_; }
  std::vector<StepTensor> Tensors() const override { return {}; }
  std::vector<GradientSpread> Spreads() const override { return {}; }
  ProfileTotals Totals(const HistogramEdges& /*edges*/, const StepOptions& /*options*/) override {
    return std::move(totals_);
  }
  StepMeasurement Measure(std::span<const StepQuestion> questions,
                          const StepOptions& /*options*/) const override {
    DLSIM_CHECK(questions.empty());
    return {};
  }
  StepMeasurement MeasureForward(std::span<const Conversion> conversions,
                                 const StepOptions& /*options*/) const override {
    DLSIM_CHECK(conversions.empty());
    return {};
  }
  ScaledTensors MeasureScaled(std::span<const NamedScaledFormat> formats,
                              const ScaleOfTensor& /*scale*/) const override {
    DLSIM_CHECK(formats.empty());
    return {};
  }

 private:
  int64_t step_;
  ProfileTotals totals_;
};

// What the reader of the trace noted that matters to what the profile answers, and what is missing.
std::vector<std::string> NotesOf(const ProfileSettings& settings) {
  std::vector<std::string> notes;
  if (settings.part) {
    notes.push_back("a part of a trace: " + MissingSteps(*settings.part) + " are missing");
  }
  const auto ranks = settings.description.find("ranks");
  const auto reduction = settings.description.find("rank_reduction");
  if (ranks == settings.description.end() || reduction == settings.description.end()) return notes;
  notes.push_back("each gradient is the " + Printable(reduction->second) + " of " +
                  Printable(ranks->second) + " data-parallel ranks");
  return notes;
}

}  // namespace

void RequireSameRanks(const ProfileReader& profile, const std::optional<RankReduction>& asked) {
  const auto& description = profile.settings().description;
  const auto made = description.find("rank_reduction");
  if (!asked || made == description.end() || made->second == NameOf(*asked)) return;
  throw UsageError("--ranks", "the profile was made otherwise", Printable(made->second),
                   NameOf(*asked));
}

SourceFacts FactsOf(const ProfileReader& profile) {
  const size_t steps = profile.step_count();
  if (steps == 0) throw InputError("profile", "holds no step");
  std::vector<std::string> notes = NotesOf(profile.settings()), gradients;
  for (const ProfileTensor& tensor : profile.Load(0).tensors) {
    if (tensor.role == Role::kGrad) gradients.push_back(tensor.name);
  }
  // The note on a part names the steps that others have.
  if (!profile.settings().part) {
    NoteGaps(
        steps, [&](size_t i) { return profile.step_number(i); }, notes);
  }
  NoteNames(gradients, notes);
  return {.steps = steps,
          .first_step = profile.step_number(0),
          .last_step = profile.step_number(steps - 1),
          .file_bytes = profile.file_bytes(),
          .description = profile.settings().description,
          .notes = std::move(notes),
          .profile = ProfileFacts{profile.settings(), profile.edges().bits().size(),
                                  profile.trace_bytes()}};
}

std::shared_ptr<const ProfileQuestion> QuestionCache::Prepare(
    const Conversion& conversion, float scale, const std::optional<DetailQuestion>& detail) {
  if (conversion.rounding == Rounding::kStochastic) {
    throw UsageError("--rounding", "a profile cannot answer for stochastic rounding",
                     "a replay of the trace itself", "sr");
  }
  const std::lock_guard lock(mutex_);
  if (size_ >= kMostQuestions) {
    by_scale_.clear();
    size_ = 0;
  }
  Questions& questions = by_scale_[std::bit_cast<uint32_t>(scale)];
  const auto found = std::find_if(questions.begin(), questions.end(), [&](const auto& question) {
    return question->Is(conversion, detail);
  });
  if (found != questions.end()) return *found;
  ++size_;
  return questions.emplace_back(std::make_shared<const ProfileQuestion>(conversion, scale, detail));
}

std::unique_ptr<GradientStep> OpenProfileStep(ProfileStep step, const HistogramEdges& edges,
                                              QuestionCache& questions,
                                              std::span<const NamedScaledFormat> scaled) {
  return std::make_unique<OpenedStep>(std::move(step), edges, scaled, questions);
}

std::unique_ptr<GradientStep> OpenTotals(ProfileTotals totals) {
  return std::make_unique<OpenedTotals>(std::move(totals));
}

void KeepTensors(const std::string& pattern, ProfileStep& step,
                 const std::set<std::string>& left_out) {
  size_t kept = 0;
  for (size_t t = 0; t < step.tensors.size(); ++t) {
    const std::string& name = step.tensors[t].name;
    if (fnmatch(pattern.c_str(), name.c_str(), 0) != 0 || left_out.contains(name)) continue;
    if (kept != t) {
      step.tensors[kept] = std::move(step.tensors[t]);
      for (std::vector<Histogram>& part : step.histograms) part[kept] = std::move(part[t]);
      if (!step.channels.empty()) step.channels[kept] = std::move(step.channels[t]);
      for (std::vector<ScaledLoss>& losses : step.scaled) losses[kept] = losses[t];
    }
    ++kept;
  }
  step.tensors.resize(kept);
  for (std::vector<Histogram>& part : step.histograms) part.resize(kept);
  if (!step.channels.empty()) step.channels.resize(kept);
  for (std::vector<ScaledLoss>& losses : step.scaled) losses.resize(kept);
}

ProfileSource::ProfileSource(const ProfileReader& profile, std::string tensors)
    : profile_(profile), tensors_(std::move(tensors)), facts_(FactsOf(profile)) {}

std::set<std::string> LossesOf(size_t steps, const std::function<ProfileStep(size_t)>& load) {
  return FindLosses(steps, [&](size_t i) {
    ProfileStep step = load(i);
    const auto may_be = [](const ProfileTensor& tensor) {
      return MayBeLoss(tensor.name, tensor.role, tensor.shape);
    };
    return std::ranges::all_of(step.tensors, may_be) ? ProfileStep() : std::move(step);
  });
}

void ProfileSource::LeaveOutLosses() {
  losses_ = LossesOf(step_count(), [&](size_t i) {
    ProfileStep step = profile_.Load(i);
    KeepTensors(tensors_, step);
    return step;
  });
  NoteLosses(losses_, facts_.notes);
}

std::unique_ptr<GradientStep> ProfileSource::Load(size_t i, StepNeeds needs) const {
  const bool all_tensors =
      losses_.empty() && (tensors_ == "*" || tensors_ == profile_.settings().tensors);
  if (needs == StepNeeds::kTotals && all_tensors) return OpenTotals(profile_.LoadTotals(i));
  ProfileStep step = profile_.Load(i);
  if (!all_tensors) KeepTensors(tensors_, step, losses_);
  return OpenProfileStep(std::move(step), profile_.edges(), questions_, profile_.settings().scaled);
}

}  // namespace dlsim::sim
