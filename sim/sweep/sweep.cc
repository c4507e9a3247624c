// SPDX-License-Identifier: Apache-2.0
// A sweep is a loop over runs on the tables of each step. Runs that ask alike share the answer and
// the judgment, so that one more of them costs next to nothing.
#include "dlsim/sim/sweep.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "dlsim/error.h"
#include "dlsim/table.h"
#include "sim/advice/advice.h"
#include "sim/advice/windows.h"
#include "sim/replay/finite_test.h"
#include "sim/replay/replay_runs.h"
#include "sim/replay/step_sources.h"
#include "src/base/parallel.h"

namespace dlsim::sim {
namespace {

// What all runs of one kind at one scale learn from a step.
struct SharedOutcome {
  ScalerInput input;
  bool lower_scale_helps = true;
  TensorStats gradients;  // of parameters
  std::string refused;    // why a profile does not tell; empty if it does
};

// Runs that ask alike, but for the scale.
struct RunKind {
  StepQuestion question;
  FiniteTest finite_test;

  friend bool operator==(const RunKind&, const RunKind&) = default;
};

SharedOutcome OutcomeOf(const Step& step, std::span<const size_t> checked, const RunKind& kind,
                        float scale) {
  StepQuestion question = kind.question;
  question.scale = scale;
  const auto answer = step.Ask(question);
  SharedOutcome outcome;
  for (size_t t = 0; t < answer->size(); ++t) {
    if (step.gradients()[t].role == Role::kGrad) outcome.gradients.Merge((*answer)[t].total);
  }
  const FiniteFindings findings = Judge(step.gradients(), *answer, checked);
  ReplayStep judged;
  judged.finite = IsFinite(kind.finite_test, findings);
  Explain(kind.finite_test, findings, judged);
  outcome.lower_scale_helps = judged.lower_scale_helps;
  outcome.input = InputOf(*answer, checked);
  outcome.input.overflow = !judged.finite;
  return outcome;
}

// Formats whose windows are searched together.
struct WindowGroup {
  Conversion conversion;     // but for the format
  std::set<size_t> formats;  // among those of the options
  std::optional<WindowFinder> finder = {};
};

struct SweptRun {
  LossScaler scaler;
  size_t kind = 0;  // among RunKinds
  // Instead, if it asks more of a step than its kind tells.
  std::unique_ptr<ReplayRuns> replay = {};
  size_t windows = 0, format = 0;   // the group and the format whose windows are its own
  SweepOutcome outcome = {};        // as it grows, step by step
  std::optional<double> loss = {};  // summed over steps, if windows are searched
  double energy_lost = 0;           // summed over applied steps
  SharedOutcome* shared = nullptr;  // of the coming step

  bool refused() const { return !outcome.refused.empty(); }
  bool ended() const { return outcome.fatal || refused(); }

  // `window` of the step; null if windows are not searched.
  void Add(const PathStep& step, const TensorStats& gradients, const StepWindow* window) {
    const double energy = gradients.energy_lost();
    outcome.Add(step, energy);
    outcome.gradients.Merge(gradients);
    if (!step.skipped) energy_lost += energy;
    if (window == nullptr) return;
    const bool lost = step.skipped || !step.finite;
    loss = loss.value_or(0) + (lost ? 1 : window->LossAt(step.scale));
    if (lost || window->hopeless) return;
    outcome.steps_below_window += step.scale < window->lowest_scale();
    outcome.steps_with_headroom += std::ldexp(step.scale, kHeadroom) <= window->highest_scale;
  }

  // Returns the outcome; `steps` are those of the trace.
  SweepOutcome Take(size_t steps) {
    outcome.gradients.quantized_sum_of_squares = 0;
    const auto applied = static_cast<double>(outcome.steps - outcome.skipped_steps);
    if (applied > 0) outcome.mean_energy_lost = energy_lost / applied;
    if (loss) {
      const auto never_run = static_cast<double>(steps - outcome.steps);
      outcome.mean_loss = (*loss + never_run) / static_cast<double>(steps);
    }
    return std::move(outcome);
  }
};

// Whether a scaler, and what all runs of its kind learn, are all of the run.
bool IsTold(const ReplayRun& run, const ReplayOptions& options) {
  return run.rules.granularity == ScaleGranularity::kModel && !run.scaler.looks_ahead() &&
         !run.resume && options.optimizers.empty();
}

class SweepLoop {
 public:
  SweepLoop(const StepSource& source, std::vector<ReplayRun> runs, const SweepOptions& options)
      : source_(source), options_(options), replay_(options.replay) {
    replay_.observer = {};
    for (ReplayRun& run : runs) Add(std::move(run));
    for (WindowGroup& group : windows_) {
      AdviceRequest request = {.formats = {}, .conversion = group.conversion};
      request.tensors = options.tensors;
      for (const size_t format : group.formats) request.formats.push_back(options.formats[format]);
      group.finder.emplace(source, request, replay_);
    }
  }

  SweepRun Run() {
    // The verdict is on all steps, also where the original would have ended every run.
    const auto going = [&] {
      return std::ranges::any_of(runs_, [&](const SweptRun& run) {
        return windows_.empty() ? !run.ended() : !run.refused();
      });
    };
    const auto take = [&](size_t i, Step& step) {
      for (WindowGroup& group : windows_) group.finder->Take(i, step);
      JudgeStep(step);
      for (SweptRun& run : runs_) {
        if (!run.ended()) Advance(i, step, run);
      }
      return going();
    };
    if (going()) ForEachStep(source_, replay_.step, take);
    SweepRun swept;
    const bool all_refused =
        std::ranges::all_of(runs_, [](const SweptRun& run) { return run.refused(); });
    for (SweptRun& run : runs_) swept.outcomes.push_back(run.Take(source_.step_count));
    for (WindowGroup& group : windows_) {
      if (all_refused) break;
      swept.verdicts.push_back({group.conversion.rounding, group.finder->Conclude()});
    }
    return swept;
  }

 private:
  void Add(ReplayRun run) {
    // Clipping changes nothing that an outcome holds.
    run.clipping = {};
    run.tensor_records = TensorRecords::kDropped;
    SweptRun swept = {.scaler = run.scaler};
    const auto outside = OutsideTables(run.conversion, 1.0f);
    if (source_.facts.profile && outside) {
      swept.outcome.refused =
          std::string(
              "only the values of the gradients tell this, which a profile does not hold: ") +
          WhyNot(*outside);
    } else {
      if (!options_.formats.empty()) FindWindowsOf(run, swept);
      if (IsTold(run, replay_)) {
        swept.kind = KindOf({QuestionOf(run, 1.0f), run.rules.finite_test});
      } else {
        std::vector<ReplayRun> alone;
        alone.push_back(std::move(run));
        swept.replay = std::make_unique<ReplayRuns>(std::move(alone), replay_);
      }
    }
    runs_.push_back(std::move(swept));
  }

  size_t KindOf(RunKind kind) {
    const auto found = std::ranges::find(kinds_, kind);
    const auto place = static_cast<size_t>(found - kinds_.begin());
    if (found == kinds_.end()) kinds_.push_back(std::move(kind));
    return place;
  }

  void FindWindowsOf(const ReplayRun& run, SweptRun& swept) {
    Conversion conversion = run.conversion;
    conversion.format = {};
    const auto group = std::ranges::find(windows_, conversion, &WindowGroup::conversion);
    swept.windows = static_cast<size_t>(group - windows_.begin());
    if (group == windows_.end()) windows_.push_back({conversion, {}});
    const auto format = std::ranges::find(options_.formats, run.format);
    swept.format = static_cast<size_t>(format - options_.formats.begin());
    windows_[swept.windows].formats.insert(swept.format);
  }

  // Finds what the coming step says at each scale that runs of a kind have.
  void JudgeStep(const Step& step) {
    struct Asked {
      const RunKind* kind;
      float scale;
      SharedOutcome* outcome;
    };
    std::vector<Asked> asked;
    StepQuestions questions;
    outcomes_.clear();
    for (SweptRun& run : runs_) {
      if (run.ended() || run.replay) continue;
      const auto scale = static_cast<float>(run.scaler.scale());
      const uint64_t key = uint64_t{run.kind} << 32 | std::bit_cast<uint32_t>(scale);
      const auto [place, added] = outcomes_.try_emplace(key);
      run.shared = &place->second;
      if (!added) continue;
      asked.push_back({&kinds_[run.kind], scale, &place->second});
      questions.gradients.push_back(kinds_[run.kind].question);
      questions.gradients.back().scale = scale;
    }
    step.MakeReady(questions);
    const std::vector<size_t> checked = CheckedIn(step, replay_.checked);
    ParallelFor(asked.size(), [&](size_t i) {
      const auto& [kind, scale, outcome] = asked[i];
      TellOrRefuse([&] { *outcome = OutcomeOf(step, checked, *kind, scale); },
                   [&](const char* why) { outcome->refused = why; });
    });
  }

  // Calls `tell`; of a profile that does not have what it asks for, `refuse` with the reason.
  template <class Tell, class Refuse>
  void TellOrRefuse(const Tell& tell, const Refuse& refuse) const {
    try {
      tell();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUsage || !source_.facts.profile) throw;
      refuse(error.what());
    }
  }

  void Advance(size_t i, Step& step, SweptRun& run) {
    const StepWindow* window = nullptr;
    if (!windows_.empty()) {
      const WindowGroup& group = windows_[run.windows];
      const auto before = std::distance(group.formats.begin(), group.formats.find(run.format));
      window = &group.finder->Latest(static_cast<size_t>(before));
    }
    if (run.replay) {
      run.replay->Take(i, step);
      const ReplayResult& result = run.replay->result(0);
      run.outcome.refused = result.unanswered.value_or("");
      if (run.refused()) return;
      if (run.replay->AllStopped()) run.outcome.fatal = result.events.back();
      const ReplayStep record = run.replay->TakeStep(0);
      return run.Add(record, record.gradients, window);
    }
    const SharedOutcome& shared = *run.shared;
    run.outcome.refused = shared.refused;
    if (run.refused()) return;
    const double scale = run.scaler.scale();
    ScalerDecision decision = run.scaler.Next(shared.input);
    run.Add({step.number(), scale, run.scaler.scale(), !shared.input.overflow, decision.skip,
             shared.lower_scale_helps},
            shared.gradients, window);
    if (!decision.event || !decision.event->fatal || replay_.on_fatal == OnFatal::kContinue) return;
    decision.event->step = step.number();
    run.outcome.fatal = std::move(*decision.event);
  }

  const StepSource& source_;
  const SweepOptions& options_;
  ReplayOptions replay_;
  std::vector<RunKind> kinds_;
  std::vector<SweptRun> runs_;
  std::vector<WindowGroup> windows_;
  std::unordered_map<uint64_t, SharedOutcome> outcomes_;  // of the coming step, by kind and scale
};

}  // namespace

SweepRun Sweep(const StepSource& source, std::vector<ReplayRun> runs, const SweepOptions& options) {
  return SweepLoop(source, std::move(runs), options).Run();
}

}  // namespace dlsim::sim
