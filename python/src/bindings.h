// SPDX-License-Identifier: Apache-2.0
// The parts of the module dlsim._core.
#pragma once

#include <nanobind/nanobind.h>

namespace dlsim::python {

namespace nb = nanobind;

void BindArrays(nb::module_& module);
void BindDeviceArrays(nb::module_& module);
void BindEngine(nb::module_& module);
void BindFormats(nb::module_& module);
void BindHeldStep(nb::module_& module);
void BindProfiles(nb::module_& module);
void BindRules(nb::module_& module);
void BindScaled(nb::module_& module);
void BindScalers(nb::module_& module);
void BindTables(nb::module_& module);
void BindTraces(nb::module_& module);

}  // namespace dlsim::python
