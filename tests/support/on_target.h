// SPDX-License-Identifier: Apache-2.0
// A test that runs once for each SIMD target that the machine has.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "dlsim/convert.h"

namespace dlsim {

// Instantiate with SupportedSimdTargets(); kernels use the target that is the parameter.
class OnTarget : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { UseSimdTarget(GetParam()); }
  void TearDown() override { UseSimdTarget(""); }
};

}  // namespace dlsim
