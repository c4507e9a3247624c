// SPDX-License-Identifier: Apache-2.0
// The recorded traces that come with the tests.
#pragma once

#include <string>

namespace dlsim {

inline const std::string kTraces = DLSIM_TEST_DATA "/traces/";
inline const std::string kAccumulated = kTraces + "lm-kjv-accum-cut";  // 2 steps of 4 micro-steps
inline const std::string kSingle = kTraces + "lm-trouble-cut";         // 13 steps, some not finite

}  // namespace dlsim
