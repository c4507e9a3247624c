// SPDX-License-Identifier: Apache-2.0
// A step that is tabulated part by part, in memory: what a ProfileWriter writes, and what a
// recorder's watch asks about.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "dlsim/profile.h"
#include "dlsim/sim/step.h"
#include "python/src/bindings.h"

namespace dlsim::python {

using HostArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

// What was tabulated already: element type, shape, and the table for each mantissa, 1 first.
using Tabulated = std::tuple<std::string, std::vector<uint64_t>, std::vector<TensorTable>>;

// Name, role, values.
using NamedArray = std::tuple<std::string, std::string, std::variant<HostArray, Tabulated>>;
using Metadata = std::map<std::string, std::string>;

// Number of the micro-step (-1 = none), loss scale that the values carry, metadata, tensors.
using Part = std::tuple<int64_t, double, Metadata, std::vector<NamedArray>>;

// Returns a loss scale that values may carry, as a reader of traces takes it: they are multiplied
// by its reciprocal. Throws UsageError.
float GradScaleOf(double given);

class StepParts {
 public:
  explicit StepParts(ProfileSettings settings = {}) : settings_(std::move(settings)) {}
  StepParts(const StepParts&) = delete;
  StepParts& operator=(const StepParts&) = delete;

  const ProfileSettings& settings() const { return settings_; }
  bool empty() const { return !step_; }

  // Tabulates a micro-step, or tensors of the step as a whole; nothing of the arrays is held then.
  void Add(int64_t step, const Part& part);

  // Returns the step that the parts make, and forgets it. The sums over several parts are not
  // known. Throws UsageError if there is none.
  StepTables Take();
  void Drop() { step_.reset(); }

  // Takes the step out of the parts for a command, without gradients of the loss itself.
  std::unique_ptr<sim::StepSource> TakeSource();

 private:
  void CheckMicro(int64_t micro) const;

  ProfileSettings settings_;
  std::optional<StepTables> step_;
};

}  // namespace dlsim::python
