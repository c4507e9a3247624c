// SPDX-License-Identifier: Apache-2.0
// What a rank sends to rank 0: its next step, or why there is none.
#pragma once

#include <exception>
#include <string>

#include "dlsim/profile_file.h"

namespace dlsim::sim {

std::string StepMessage(const EncodedStep& step);
std::string FailureMessage(const std::exception_ptr& failure);

// Returns the step of a message; throws Error for a failure.
EncodedStep StepOfMessage(const std::string& message);

// A failure as the command reports it.
struct Failure {
  int exit_code = 0;
  std::string text;
};
Failure FailureOf(const std::exception_ptr& failure);

}  // namespace dlsim::sim
