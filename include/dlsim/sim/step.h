// SPDX-License-Identifier: Apache-2.0
// The steps that a replay goes through: of a trace, of a profile, or in memory. Each is opened as
// its tables, which answer nearly all that is asked; the values of a trace answer the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/measure_step.h"
#include "dlsim/profile.h"
#include "dlsim/scaled_codec.h"
#include "dlsim/sim/loss_scaler.h"
#include "dlsim/step_tables.h"
#include "dlsim/trace.h"

namespace dlsim::sim {

// A key of a recording's metadata, as kAutocastFloat32Key: the optimizers, if they all move each
// parameter by its gradient, at one rate for all: "SGD".
inline constexpr std::string_view kDescentKey = "descent";

// As that, the 16-bit types in which the recorded training computed, by autocast or by itself:
// "float16", "bfloat16".
inline constexpr std::string_view kComputedInKey = "computed_in";

// How many steps the recorder has refused since the recorded step before, and why the first of
// them.
inline constexpr std::string_view kRefusedKey = "refused", kRefusedFirstKey = "refused_first";

// Steps that a recorder refused, and why the first of them.
struct RefusedSteps {
  uint64_t steps = 0;
  std::string first;

  void Add(const RefusedSteps& later) {
    if (steps == 0) first = later.first;
    steps += later.steps;
  }
};

// As Step::Errors.
struct ErrorQuestion {
  Format format;
  int log2_scale = 0;

  friend bool operator==(const ErrorQuestion&, const ErrorQuestion&) = default;
};

// What a step is asked.
struct StepQuestions {
  std::vector<StepQuestion> gradients = {};
  std::vector<Conversion> forward = {};
  std::vector<ErrorQuestion> errors = {};
};

// One step, opened for questions. Thread-safe but for Drop.
class Step {
 public:
  // `recorded`: the step whose tables these are; null if its values are not at hand. `check` is
  // called after values were read again; it throws if they have changed.
  Step(StepTables tables, std::shared_ptr<const TraceStep> recorded, StepOptions options,
       std::function<void()> check = {});

  int64_t number() const { return tables().step; }
  const StepTables& tables() const { return opened_->tables; }
  TensorSpan gradients() const {
    return {std::span(tables().tensors).first(tables().gradients), {}};
  }
  TensorSpan forward() const {
    return {std::span(tables().tensors).subspan(tables().gradients), {}};
  }

  // Null: the values are not at hand.
  const TraceStep* recorded() const { return opened_->recorded.get(); }

  // Throws if values that were read have changed meanwhile.
  void Check() const;

  // Returns the same step, which was asked nothing.
  std::unique_ptr<Step> Again() const { return std::unique_ptr<Step>(new Step(opened_)); }

  // Leaves out tensors.
  void Drop(const std::function<bool(const TensorInfo& tensor)>& drops);

  // What its metadata says under a key, empty without it; or lists there, one a line.
  std::string Metadata(std::string_view key) const;
  std::set<std::string> Listed(std::string_view key) const;

  // Whether a loss was recorded with it, and is NaN or infinite.
  bool HasBrokenLoss() const;

  // The steps before it, since the one before that was recorded, which are missing as refused.
  RefusedSteps RefusedBefore() const;

  // Of each gradient, what is counted of the values themselves; the rest is 0. Empty without
  // tables.
  const std::vector<TensorStats>& Inputs() const { return opened_->inputs; }

  // What a conversion at a scale does to each gradient; kept, so that asking again costs nothing,
  // also where it is known to be the same at another scale.
  // Throws UsageError for what needs the values where they are not at hand.
  std::shared_ptr<const StepAnswer> Ask(const StepQuestion& question) const;

  // Of each gradient at 2^log2_scale, the sum of squared errors to nearest over its parts; see
  // ErrorSquares in table.h. Kept as the answers of Ask are.
  std::shared_ptr<const std::vector<double>> Errors(const Format& format, int log2_scale) const;

  // What a conversion does to each tensor of the forward pass, by part; see StepTables::parts.
  std::shared_ptr<const StepAnswer> AskForward(const Conversion& conversion) const;

  // The spread of each gradient; micro-steps count as one population. Kept, and throws, as Ask
  // does.
  std::shared_ptr<const std::vector<GradientSpread>> Spreads() const;

  // What all its tensors lose in scaled formats; see MeasureScaledStep. Throws Error (exit code 3)
  // for a format that a profile does not hold.
  std::vector<std::vector<ScaledLoss>> MeasureScaled(std::span<const NamedScaledFormat> formats,
                                                     const ScaleOfTensor& scale) const;

  // About the memory that it takes.
  uint64_t Bytes() const;

  // What it was asked so far, but for scales of single gradients.
  StepQuestions Asked() const;

  // Has the answers ready, as far as they are told; does not count as asking. Before others have
  // this step.
  void MakeReady(const StepQuestions& questions) const;

 private:
  struct Opened;
  struct Answers;
  struct OpenQuestion;

  explicit Step(std::shared_ptr<Opened> opened);

  struct KeptAnswers {
    std::vector<std::shared_ptr<const StepAnswer>> gradients;
    std::vector<std::shared_ptr<const std::vector<double>>> errors;
  };

  // Over all parts of all gradients.
  struct GradientBounds {
    ExponentRange range = {};
    bool infinite = false;  // a value is
    double squares = 0;     // the sum of their squares, times the parts
    double sum = 0;         // no sum of a gradient's values is larger
  };

  // What does not depend on what it is asked.
  struct Opened {
    StepTables tables;
    std::shared_ptr<const TraceStep> recorded;
    StepOptions options;
    std::function<void()> check;
    std::vector<TensorStats> inputs = {};
    GradientBounds bounds = {};
    RefusedSteps refused = {};
    bool broken_loss = false;

    void LookAtInputs();
  };

  // `otherwise`: what else than the trace would tell, after a comma.
  const TraceStep& Values(const std::string& reason, const std::string& otherwise = {}) const;
  std::shared_ptr<const PartTables> TablesAt(float scale) const;
  bool SumsMayOverflow(const StepQuestion& question) const;
  StepQuestion Simplified(StepQuestion question) const;
  const char* AskTables(const OpenQuestion& one, size_t t, std::span<TableReader> readers,
                        TensorAnswer& answer) const;
  KeptAnswers Answer(std::span<const StepQuestion> questions,
                     std::span<const ErrorQuestion> errors) const;
  void CountDetails(std::span<OpenQuestion> open) const;
  void AskValues(OpenQuestion& one) const;
  void Measure(StepQuestion question, std::span<const size_t> gradients,
               std::span<const uint8_t> told, const TraceStep& values, StepAnswer& answer) const;
  void MeasureForward(const Conversion& conversion, std::span<const uint8_t> told,
                      StepAnswer& answer) const;

  std::shared_ptr<Opened> opened_;
  std::shared_ptr<Answers> answers_;
};

// What a profile says of itself, for the record.
struct ProfileFacts {
  ProfileSettings settings;
  uint64_t trace_bytes = 0;  // of the files that it was made from
};

// What a trace says of itself, for the record.
struct SourceFacts {
  size_t steps = 0;  // as recorded
  int64_t first_step = 0, last_step = 0;
  uint64_t file_bytes = 0;                         // of all files
  std::map<std::string, std::string> description;  // the string fields of the trace's trace.json
  std::vector<std::string> notes;                  // remarks for the user; one line each
  std::optional<ProfileFacts> profile;             // if it is not the trace but its profile
};

// Steps in order, each of which can be opened at any time. Copies are cheap, and what they were
// made of must live as long.
struct StepSource {
  SourceFacts facts;
  size_t step_count = 0;  // effective steps: several recorded ones may make one

  // Opens the i-th step. Thread-safe, as the others are. Throws Error (exit code 3) for a bad file.
  std::function<std::unique_ptr<Step>(size_t i, const StepOptions& options)> load;

  // The tensors of the i-th step and its metadata, without tables: nothing of the values is read.
  std::function<std::unique_ptr<Step>(size_t i)> describe;

  // Whether one thread is enough for a step, so that several are opened at once.
  bool small_steps = false;

  // Has the system read the i-th step, which will be opened soon.
  std::function<void(size_t i)> read_ahead = {};

  // Parts of the model that are taken to be in float32, and whose tensors are left out.
  std::vector<std::string> float32 = {};
};

// The effective steps of a trace, which must live as long. With accumulate_steps N an effective
// gradient is the sum of N recorded ones, each divided by N, and has the last one's number; what
// remains at the end is not used. Throws UsageError if that does not fit the trace: its own
// micro-steps are not as many.
StepSource TraceSteps(const TraceReader& trace, int64_t accumulate_steps = 1);

// The steps of a profile, with the tensors whose name matches the pattern (fnmatch). `profile` must
// live as long.
StepSource ProfileSteps(const ProfileReader& profile, const std::string& tensors = "*");

// Returns the steps without gradients of the loss itself, which training keeps in float32, so that
// they bound no loss scale; a note says so. They are activation gradients of an output without
// dimensions, or of shape (1,) of the model itself, whose unscaled value is 1, or 1/n of n
// micro-steps, alike at all steps that are looked at: up to 64, all over the run. Not of steps that
// have nothing else.
StepSource WithoutLosses(StepSource source);

// Returns the same steps without the tensors that `drops` names.
StepSource Without(StepSource source, std::function<bool(const TensorInfo& tensor)> drops);

// Returns the same steps, for callers that go through them several times: the first ones stay in
// memory, as far as `bytes` holds them. What they were tabulated for is what was asked first.
StepSource KeepSteps(StepSource source, uint64_t bytes);

// Passes the steps to `take` in order until it returns false. Steps are opened ahead, on all
// threads, as many at once as options.memory_bytes holds. The caller of the engine is told the
// progress, and may end it. Throws Error for a bad file.
void ForEachStep(const StepSource& source, const StepOptions& options,
                 const std::function<bool(size_t i, Step& step)>& take);

}  // namespace dlsim::sim
