// SPDX-License-Identifier: Apache-2.0
// The parts of the module dlsim._core.
#pragma once

#include <nanobind/nanobind.h>

namespace dlsim::python {

void BindArrays(nanobind::module_& module);
void BindDeviceArrays(nanobind::module_& module);
void BindEngine(nanobind::module_& module);
void BindFormats(nanobind::module_& module);
void BindHeldStep(nanobind::module_& module);
void BindProfiles(nanobind::module_& module);
void BindRules(nanobind::module_& module);
void BindScaled(nanobind::module_& module);
void BindScalers(nanobind::module_& module);
void BindSimd(nanobind::module_& module);
void BindTables(nanobind::module_& module);
void BindTraces(nanobind::module_& module);

}  // namespace dlsim::python
