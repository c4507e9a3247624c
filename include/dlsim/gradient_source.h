// SPDX-License-Identifier: Apache-2.0
// Where a replay gets its gradients from: a trace, or the profile of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dlsim/loss_scaler.h"
#include "dlsim/measure_step.h"

namespace dlsim {

// One step, opened for questions.
class GradientStep {
 public:
  virtual ~GradientStep() = default;

  virtual int64_t number() const = 0;

  // The tensors, in the order of StepMeasurement::tensors.
  virtual std::vector<StepTensor> Tensors() const = 0;

  // The spread of each tensor; see MeasureSpreads.
  virtual std::vector<GradientSpread> Spreads() const = 0;

  // Answers questions; see MeasureStep. A profile cannot answer each exactly: see TensorAnswer.
  virtual StepMeasurement Measure(std::span<const StepQuestion> questions,
                                  const StepOptions& options) const = 0;
};

class GradientSource {
 public:
  virtual ~GradientSource() = default;

  virtual size_t step_count() const = 0;
  virtual int64_t step_number(size_t i) const = 0;

  // Size of all files that were or will be read, in bytes.
  virtual uint64_t file_bytes() const = 0;

  // The string fields of the trace's trace.json; empty without one.
  virtual const std::map<std::string, std::string>& description() const = 0;

  // Remarks for the user; one line each.
  virtual const std::vector<std::string>& notes() const = 0;

  // Opens the i-th step. Throws Error (exit code 3) for a bad file.
  virtual std::unique_ptr<GradientStep> Load(size_t i) const = 0;
};

}  // namespace dlsim
