// SPDX-License-Identifier: Apache-2.0
#include "dlsim/replay.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>
#include <map>

namespace dlsim {
namespace {

// A float32 norm overflows when the sum of squares rounds past float32's largest value.
constexpr double kFloat32Overflow = 0x1p128 - 0x1p103;

// A run on its way through the trace.
struct RunState {
  ReplayRun run;
  ReplayResult result;
  std::map<std::string, size_t> tensor_index;
  size_t question = 0;  // of the current step
};

// The verdict over the checked tensors of one step, with what is needed to explain it.
struct Verdict {
  double sum_of_squares = 0;                     // of the unscaled gradients of the whole step
  bool nonfinite_element = false;                // among the quantised, still scaled gradients
  bool nonfinite_scaled_sum = false;             // only their float32 sum over micro-steps
  bool nonfinite_sum = false;                    // only that sum after unscaling
  const std::string* input_tensor = nullptr;     // first with a non-finite input
  const std::string* overflow_tensor = nullptr;  // the one that overflows farthest
  const std::string* largest_tensor = nullptr;   // the largest part of the norm
};

// Returns the counters of each tensor over the parts of the step.
std::vector<TensorStats> Totals(const std::vector<TensorAnswer>& answers) {
  std::vector<TensorStats> totals(answers.size());
  for (size_t t = 0; t < answers.size(); ++t) {
    for (const TensorStats& part : answers[t].parts) totals[t].Merge(part);
  }
  return totals;
}

Verdict Judge(const StepMeasurement& step, const std::vector<TensorAnswer>& answers,
              const std::vector<TensorStats>& totals, Checked checked) {
  Verdict verdict;
  float worst_overflow = 0;
  double largest = -1;
  for (size_t t = 0; t < answers.size(); ++t) {
    const bool decides = step.tensors[t].role == Role::kGrad || checked == Checked::kAllGradients;
    if (!decides) continue;
    const TensorStats& total = totals[t];
    const double squares = answers[t].effective_sum_of_squares;
    const std::string* name = &step.tensors[t].name;
    verdict.sum_of_squares += squares;
    if (total.nonfinite_outputs > 0) {
      verdict.nonfinite_element = true;
    } else if (answers[t].parts.size() > 1) {
      verdict.nonfinite_scaled_sum |= !answers[t].scaled_sum_finite;
      verdict.nonfinite_sum |= !std::isfinite(squares);
    }
    if (total.nonfinite() > 0 && verdict.input_tensor == nullptr) verdict.input_tensor = name;
    if (total.overflow > 0 && total.absmax > worst_overflow) {
      worst_overflow = total.absmax;
      verdict.overflow_tensor = name;
    }
    if (squares > largest) {
      largest = squares;
      verdict.largest_tensor = name;
    }
  }
  return verdict;
}

bool IsFinite(FiniteTest test, const Verdict& verdict) {
  switch (test) {
    case FiniteTest::kElementwise:
      return !verdict.nonfinite_element && !verdict.nonfinite_scaled_sum;
    case FiniteTest::kUnscaledElementwise:
    case FiniteTest::kGlobalNorm:
    case FiniteTest::kScaledNorm:
    case FiniteTest::kSum:
      return verdict.sum_of_squares < kFloat32Overflow;  // not for NaN
  }
  return false;
}

void Explain(const Verdict& verdict, ReplayStep& record) {
  if (record.finite) return;
  const std::string* tensor = verdict.largest_tensor;
  record.cause = Cause::kNorm;
  if (verdict.input_tensor != nullptr) {
    record.cause = Cause::kInput;
    tensor = verdict.input_tensor;
  } else if (verdict.nonfinite_element) {
    record.cause = Cause::kOverflow;
    tensor = verdict.overflow_tensor;
  } else if (verdict.nonfinite_scaled_sum || verdict.nonfinite_sum) {
    record.cause = Cause::kAccumulation;
  }
  if (tensor != nullptr) record.cause_tensor = *tensor;
}

// Returns the run's record of the t-th tensor of a step; steps mostly have the same tensors.
ReplayTensor& TensorOf(RunState& state, const StepTensor& tensor, size_t t) {
  std::vector<ReplayTensor>& tensors = state.result.tensors;
  if (t < tensors.size() && tensors[t].name == tensor.name) return tensors[t];
  const auto [entry, added] = state.tensor_index.try_emplace(tensor.name, tensors.size());
  if (added) tensors.push_back({tensor.name, tensor.role, {}});
  return tensors[entry->second];
}

// Adds a step's counters to its record and to the tensors of the run.
void Count(const StepMeasurement& step, const std::vector<TensorAnswer>& answers,
           const std::vector<TensorStats>& totals, ReplayStep& record, RunState& state) {
  double sum_of_squares = 0;
  for (size_t t = 0; t < answers.size(); ++t) {
    const TensorStats& total = totals[t];
    const bool gradient = step.tensors[t].role == Role::kGrad;
    (gradient ? record.gradients : record.activations).Merge(total);
    if (gradient) sum_of_squares += answers[t].effective_sum_of_squares;
    ReplayTensor& tensor = TensorOf(state, step.tensors[t], t);
    tensor.stats.Merge(total);
    if (!record.skipped) {
      tensor.worst_step_energy_lost = std::max(tensor.worst_step_energy_lost, total.energy_lost());
    }
    if (total.overflow > 0 && !tensor.first_overflow_step) tensor.first_overflow_step = record.step;
  }
  record.grad_norm = std::sqrt(sum_of_squares);
}

// Lets a run live through one measured step.
void Advance(const StepMeasurement& step, int64_t number, const ReplayOptions& options,
             RunState& state) {
  const std::vector<TensorAnswer>& answers = step.answers[state.question];
  const std::vector<TensorStats> totals = Totals(answers);
  ReplayStep record;
  record.step = number;
  record.scale = state.run.scaler.scale();
  const Verdict verdict = Judge(step, answers, totals, options.checked);
  record.finite = IsFinite(state.run.rules.finite_test, verdict);
  Explain(verdict, record);
  ScalerDecision decision = state.run.scaler.Next({.overflow = !record.finite});
  record.skipped = decision.skip;
  record.next_scale = state.run.scaler.scale();
  Count(step, answers, totals, record, state);
  state.result.steps.push_back(std::move(record));
  if (!decision.event) return;
  decision.event->step = number;
  if (decision.event->fatal && options.on_fatal == OnFatal::kStop) {
    state.result.stopped_at = number;
  }
  state.result.events.push_back(std::move(*decision.event));
}

// Opens the next step while the current one is measured.
class StepLoader {
 public:
  explicit StepLoader(const TraceReader& trace) : trace_(trace) {}

  // Loads step i, if there is one; a failure is kept for Take.
  void LoadAhead(size_t i) {
    if (i >= trace_.step_count()) return;
    try {
      ahead_ = trace_.Load(i);
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  // Returns step i, which is the one loaded ahead unless nothing was.
  TraceStep Take(size_t i) {
    if (failure_) std::rethrow_exception(failure_);
    if (!ahead_) return trace_.Load(i);
    TraceStep step = std::move(*ahead_);
    ahead_.reset();
    return step;
  }

 private:
  const TraceReader& trace_;
  std::optional<TraceStep> ahead_;
  std::exception_ptr failure_;
};

// Gathers the distinct questions of the runs that go on and tells each run which is its own.
std::vector<StepQuestion> GatherQuestions(std::vector<RunState>& states) {
  std::vector<StepQuestion> questions;
  for (RunState& state : states) {
    if (state.result.stopped_at) continue;
    const StepQuestion question = {state.run.conversion,
                                   static_cast<float>(state.run.scaler.scale())};
    const auto found = std::find(questions.begin(), questions.end(), question);
    state.question = static_cast<size_t>(found - questions.begin());
    if (found == questions.end()) questions.push_back(question);
  }
  return questions;
}

}  // namespace

const char* CauseName(Cause cause) {
  switch (cause) {
    case Cause::kNone:
      return "";
    case Cause::kInput:
      return "input";
    case Cause::kOverflow:
      return "overflow";
    case Cause::kNorm:
      return "norm";
    case Cause::kAccumulation:
      return "accumulation";
  }
  return "";
}

std::vector<ReplayResult> Replay(const TraceReader& trace, std::vector<ReplayRun> runs,
                                 const ReplayOptions& options) {
  std::vector<RunState> states;
  for (ReplayRun& run : runs) states.push_back({std::move(run), {}, {}, 0});
  StepLoader loader(trace);
  StepOptions step_options = options.step;
  TraceStep finished;  // closed beside the next step: unmapping a file takes long
  for (size_t i = 0; i < trace.step_count(); ++i) {
    const std::vector<StepQuestion> questions = GatherQuestions(states);
    if (questions.empty()) break;
    TraceStep step = loader.Take(i);
    step_options.beside = [&] {
      finished = {};
      loader.LoadAhead(i + 1);
    };
    const StepMeasurement measured = MeasureStep(step, questions, step_options);
    ObservedStep observed = {i, step, measured, {}};
    for (RunState& state : states) {
      if (state.result.stopped_at) continue;
      Advance(measured, step.step, options, state);
      observed.runs.push_back(
          {state.run, measured.answers[state.question], state.result.steps.back()});
    }
    if (options.observer) options.observer(observed);
    finished = std::move(step);
  }
  std::vector<ReplayResult> results;
  for (RunState& state : states) results.push_back(std::move(state.result));
  return results;
}

ReplaySummary Summarize(const ReplayResult& result) {
  ReplaySummary summary;
  if (result.steps.empty()) return summary;
  summary.steps = result.steps.size();
  summary.final_scale = result.steps.back().next_scale;
  summary.min_scale = summary.max_scale = result.steps.front().scale;
  for (const ReplayStep& step : result.steps) {
    summary.skipped_steps += step.skipped;
    summary.nonfinite_steps += !step.finite;
    if (!step.skipped && !summary.first_applied_step) summary.first_applied_step = step.step;
    summary.min_scale = std::min(summary.min_scale, step.scale);
    summary.max_scale = std::max(summary.max_scale, step.scale);
    if (!step.skipped) {
      summary.worst_step_energy_lost =
          std::max(summary.worst_step_energy_lost, step.gradients.energy_lost());
    }
    summary.gradients.Merge(step.gradients);
    summary.activations.Merge(step.activations);
  }
  return summary;
}

std::optional<int64_t> ExpectedWarmUpSkips(const ReplayRun& run, float absmax) {
  constexpr int64_t kMaxSteps = 10000;
  const CodecSpec spec = MakeCodecSpec(run.conversion);
  LossScaler scaler = run.scaler;
  for (int64_t skips = 0; skips < kMaxSteps; ++skips) {
    const float scaled = absmax * static_cast<float>(scaler.scale());
    const EncodeResult result =
        Encode(spec, run.conversion.rounding, std::bit_cast<uint32_t>(scaled), ~0u);
    const CodeClass output = Classify(spec, result.code);
    const bool overflow = output == CodeClass::kInfinity || output == CodeClass::kNan;
    if (!scaler.Next({.overflow = overflow}).skip) return skips;
  }
  return std::nullopt;
}

}  // namespace dlsim
