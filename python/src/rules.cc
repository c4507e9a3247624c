// SPDX-License-Identifier: Apache-2.0
// Rules that Python code applies: to gradients of its own as a replay has them, to figures of a
// training as `--expect` has them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/measure_step.h"
#include "python/src/bindings.h"
#include "python/src/profile_input.h"
#include "sim/base/expectation.h"
#include "sim/base/number.h"
#include "sim/replay/finite_test.h"
#include "src/trace/tensor_rules.h"

namespace nb = nanobind;

namespace dlsim::python {

using namespace sim;

namespace {

// What was found of the gradient of one parameter over all micro-steps of a step.
struct GradientFacts {
  std::string name;
  bool has_nonfinite_input = false;
  bool overflows = false;
  float absmax = 0;
  bool is_scaled_finite = true;  // the sum over micro-steps that still carries the scale
  double sum_of_squares = 0;     // without the scale; infinite or NaN as an element is
  double scaled_sum = 0;         // both of what still carries the scale, if the test asks
  double scaled_sum_of_squares = 0;
};

// Whether a step is finite; if not the cause, the tensor to blame, whether a lower scale helps.
using Judgment = std::tuple<bool, std::string_view, std::string, bool>;

Judgment JudgeStep(const std::string& test_name, const std::vector<GradientFacts>& gradients) {
  const std::optional<FiniteTest> test = ValueNamed<FiniteTest>(test_name);
  if (!test) {
    throw UsageError("finite_test", "unknown test", "one of --finite-test", Quoted(test_name));
  }
  StepMeasurement step;
  std::vector<TensorAnswer> answers;
  std::vector<TensorStats> totals;
  for (const GradientFacts& gradient : gradients) {
    step.tensors.push_back({gradient.name, Role::kGrad});
    TensorStats& total = totals.emplace_back();
    total.nan = gradient.has_nonfinite_input ? 1 : 0;
    total.overflow = gradient.overflows ? 1 : 0;
    total.nonfinite_outputs = total.nan + total.overflow;
    total.absmax = gradient.absmax;
    TensorAnswer& answer = answers.emplace_back();
    // What no micro-step explains is due to their sum.
    answer.parts.resize(gradient.is_scaled_finite ? 1 : 2);
    answer.scaled_sum_finite = gradient.is_scaled_finite;
    answer.effective_sum_of_squares = gradient.sum_of_squares;
    answer.detail.scaled_sum = gradient.scaled_sum;
    answer.detail.scaled_sum_of_squares = gradient.scaled_sum_of_squares;
  }
  std::vector<size_t> all(gradients.size());
  std::iota(all.begin(), all.end(), size_t{0});
  const FiniteFindings findings = Judge({step, answers, totals}, all);
  ReplayStep record;
  record.finite = IsFinite(*test, findings);
  Explain(*test, findings, record);
  return {record.finite, NameOf(record.cause), record.cause_tensor, record.lower_scale_helps};
}

class Alert {
 public:
  Alert(const std::string& text, std::string place)
      : place_(std::move(place)), expectation_(ParseExpectation(text, place_)) {
    if (expectation_.subject.empty()) return;
    throw UsageError(place_, "there are no runs to choose from", "a figure alone", Quoted(text));
  }

  const std::string& text() const { return expectation_.text; }
  const std::string& figure() const { return expectation_.figure; }
  void Require(const std::vector<std::string>& figures) const {
    RequireFigure(expectation_, figures, place_);
  }

  bool HoldsOf(std::optional<double> found) const {
    if (!found) return Holds(expectation_, std::nullopt);
    return Holds(expectation_, Bracket<double>{*found, *found});
  }

 private:
  std::string place_;
  Expectation expectation_;
};

}  // namespace

void BindRules(nb::module_& module) {
  nb::class_<Alert>(module, "Alert", "An expression such as scale<=1, as of `--expect`.")
      .def(nb::init<const std::string&, std::string>(), nb::arg("text"), nb::arg("place"),
           "Reads FIGURE OP NUMBER; errors, which are UsageErrors, name `place`.")
      .def_prop_ro("text", &Alert::text, "The expression as it was given.")
      .def_prop_ro("figure", &Alert::figure, "The name of the figure.")
      .def("require", &Alert::Require, nb::arg("figures"),
           "Raises UsageError unless the figure is one of these.")
      .def("holds", &Alert::HoldsOf, nb::arg("found").none(),
           "Returns whether it is true if the figure is `found`; None: it has no value.");
  nb::class_<GradientFacts>(module, "GradientFacts", "What was found of a parameter's gradient.")
      .def(nb::init<>())
      .def_rw("name", &GradientFacts::name)
      .def_rw("has_nonfinite_input", &GradientFacts::has_nonfinite_input)
      .def_rw("overflows", &GradientFacts::overflows)
      .def_rw("absmax", &GradientFacts::absmax)
      .def_rw("is_scaled_finite", &GradientFacts::is_scaled_finite)
      .def_rw("sum_of_squares", &GradientFacts::sum_of_squares)
      .def_rw("scaled_sum", &GradientFacts::scaled_sum)
      .def_rw("scaled_sum_of_squares", &GradientFacts::scaled_sum_of_squares);
  module.def("judge_step", JudgeStep, nb::arg("test"), nb::arg("gradients"),
             "(finite, cause, tensor to blame, whether a lower scale helps) by a finite test.");
  module.def(
      "role_of", [](std::string_view name) { return NameOf(RoleOfName(name)); }, nb::arg("name"),
      "The role that a reader gives a tensor of this name.");
  module.def("stream_of", StreamOf, nb::arg("name"), nb::arg("step"), nb::arg("micro") = -1,
             "The random stream of a tensor in a step; -1 = without micro-steps.");
  module.def("parse_number", ParseNumber, nb::arg("text"), nb::arg("place"),
             "The value of a text such as 65536, 2e15 or 2^16.");
  module.def("checked_grad_scale", GradScaleOf, nb::arg("scale"),
             "The loss scale that values carry, in float32; it must have a finite reciprocal.");
}

}  // namespace dlsim::python
