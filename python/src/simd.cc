// SPDX-License-Identifier: Apache-2.0
// Which SIMD instruction sets the kernels use.
#include "dlsim/simd.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "python/src/bindings.h"

namespace nb = nanobind;

namespace dlsim::python {

void BindSimd(nb::module_& module) {
  module.def("simd_targets", SupportedSimdTargets, "The targets of this machine, best first.");
  module.def("simd_target", CurrentSimdTarget, "The target that the kernels use now.");
  module.def(
      "use_simd_target", [](const std::string& name) { UseSimdTarget(name); }, nb::arg("name"),
      "Makes the kernels use a target; '' = the best one.");
}

}  // namespace dlsim::python
