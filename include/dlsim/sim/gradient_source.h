// SPDX-License-Identifier: Apache-2.0
// Where a replay gets its gradients and forward tensors from: a trace, or the profile of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/measure_step.h"
#include "dlsim/profile.h"
#include "dlsim/scaled_step.h"
#include "dlsim/sim/loss_scaler.h"
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

// The tensors of a step, gradients and of the forward pass, and what they lose: [format][tensor].
struct ScaledTensors {
  std::vector<ProfileTensor> tensors;
  std::vector<std::vector<ScaledLoss>> losses;
};

// Steps that a recorder refused, and why the first of them.
struct RefusedSteps {
  uint64_t steps = 0;
  std::string first;

  void Add(const RefusedSteps& later) {
    if (steps == 0) first = later.first;
    steps += later.steps;
  }
};

// One step, opened for questions.
class GradientStep {
 public:
  virtual ~GradientStep() = default;

  virtual int64_t number() const = 0;

  // Whether a loss was recorded with it, and is NaN or infinite.
  virtual bool HasBrokenLoss() const { return false; }

  // The steps before it, since the one before that was recorded, which are missing as refused.
  virtual RefusedSteps RefusedBefore() const { return {}; }

  // What all its tensors lose in scaled formats; see MeasureScaledStep. Throws Error (exit code 3)
  // for a format that a profile does not hold.
  virtual ScaledTensors MeasureScaled(std::span<const NamedScaledFormat> formats,
                                      const ScaleOfTensor& scale) const = 0;

  // The step as it was recorded; null if its values are not at hand, as those of a profile.
  virtual const TraceStep* Recorded() const { return nullptr; }

  // What its metadata lists under a key, one a line, such as kAutocastFloat32Key.
  virtual std::set<std::string> Listed(std::string_view /*key*/) const { return {}; }

  // What its metadata says under a key; empty without it.
  virtual std::string Metadata(std::string_view /*key*/) const { return ""; }

  // The gradients, in the order of StepMeasurement::tensors.
  virtual std::vector<StepTensor> Tensors() const = 0;

  // The spread of each gradient; see MeasureSpreads.
  virtual std::vector<GradientSpread> Spreads() const = 0;

  // Counts the step at edges, summed over gradients; once per step. The edges are the source's, if
  // it has its own.
  virtual ProfileTotals Totals(const HistogramEdges& edges, const StepOptions& options) = 0;

  // Answers questions; see MeasureStep. A profile cannot answer each exactly: see TensorAnswer.
  virtual StepMeasurement Measure(std::span<const StepQuestion> questions,
                                  const StepOptions& options) const = 0;

  // Measures the forward tensors as they are; see MeasureForward. Without any, there are no tensors
  // and each answer is empty.
  virtual StepMeasurement MeasureForward(std::span<const Conversion> conversions,
                                         const StepOptions& options) const = 0;
};

// What a step is opened for: everything, or nothing but its totals.
enum class StepNeeds : uint8_t { kTensors, kTotals };

// What a profile says of itself, for the record.
struct ProfileFacts {
  ProfileSettings settings;
  size_t edges = 0;          // magnitudes at which values are told apart
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

SourceFacts FactsOf(const TraceReader& trace);

class GradientSource {
 public:
  virtual ~GradientSource() = default;

  virtual const SourceFacts& facts() const = 0;

  // The effective steps: several recorded ones may make one.
  virtual size_t step_count() const = 0;

  // The only edges that its steps know, as those of a profile; null if they count at any.
  virtual const HistogramEdges* edges() const { return nullptr; }

  // True if one thread is enough for a step, and several steps can be open and read at once.
  virtual bool HasSmallSteps() const { return false; }

  // Has the system read the i-th step, which will be opened soon.
  virtual void ReadAhead(size_t /*i*/) const {}

  // Opens the i-th step. Throws Error (exit code 3) for a bad file.
  virtual std::unique_ptr<GradientStep> Load(size_t i, StepNeeds needs) const = 0;
};

}  // namespace dlsim::sim
