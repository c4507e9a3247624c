// SPDX-License-Identifier: Apache-2.0
// The module dlsim._core, and how C++ errors become Python exceptions.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "dlsim/convert.h"
#include "dlsim/error.h"
#include "python/src/bindings.h"

namespace nb = nanobind;

namespace dlsim::python {
namespace {

const char* ExceptionName(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kUsage:
      return "UsageError";
    case ErrorKind::kInput:
      return "InputError";
    case ErrorKind::kCheckFailed:
    case ErrorKind::kIncomparable:
    case ErrorKind::kInternal:
      return "Error";
  }
  return "Error";
}

// The exceptions are classes of dlsim._errors.
void Translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    const nb::object type = nb::module_::import_("dlsim._errors").attr(ExceptionName(error.kind()));
    PyErr_SetObject(type.ptr(), nb::str(error.what()).ptr());
  }
}

// Which SIMD instruction sets the kernels use.
void BindSimd(nb::module_& module) {
  module.def("simd_targets", SupportedSimdTargets, "The targets of this machine, best first.");
  module.def("simd_target", CurrentSimdTarget, "The target that the kernels use now.");
  module.def(
      "use_simd_target", [](const std::string& name) { UseSimdTarget(name); }, nb::arg("name"),
      "Makes the kernels use a target; '' = the best one.");
}

}  // namespace
}  // namespace dlsim::python

NB_MODULE(_core, module) {
  nb::set_leak_warnings(false);  // PyTorch keeps objects beyond the interpreter's end
  module.attr("__version__") = DLSIM_VERSION;
  nb::register_exception_translator(dlsim::python::Translate);
  dlsim::python::BindFormats(module);
  dlsim::python::BindArrays(module);
  dlsim::python::BindTables(module);
  dlsim::python::BindHeldStep(module);
  dlsim::python::BindEngine(module);
  dlsim::python::BindRules(module);
  dlsim::python::BindScaled(module);
  dlsim::python::BindScalers(module);
  dlsim::python::BindSimd(module);
  dlsim::python::BindTraces(module);
  dlsim::python::BindProfiles(module);
  dlsim::python::BindDeviceArrays(module);
}
