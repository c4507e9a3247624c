// SPDX-License-Identifier: Apache-2.0
// Rules that Python code applies: to names of tensors, and to figures of a training as `--expect`
// has them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/measure_step.h"
#include "python/src/bindings.h"
#include "python/src/step_parts.h"
#include "sim/base/expectation.h"
#include "sim/base/parse.h"
#include "src/trace/tensor_rules.h"

namespace dlsim::python {

using namespace sim;

namespace {

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

  bool HoldsOf(std::optional<double> found) const { return Holds(expectation_, found); }

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
