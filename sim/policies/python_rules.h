// SPDX-License-Identifier: Apache-2.0
// What the policies share whose originals are Python code on Python numbers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "dlsim/sim/loss_scaler.h"
#include "sim/policies/python_number.h"
#include "sim/policies/settings.h"

namespace dlsim::sim {

// The event of an exception that ends the training.
ScalerEvent FatalEvent(const PythonError& error);

// The state that DeepSpeed's FP16_Optimizer took over from apex.fp16_utils.
struct IterationState {
  PythonNumber cur_scale;
  int64_t cur_iter = 0;
  int64_t last_overflow_iter = -1;

  static constexpr auto Fields() {
    return std::tuple{StateField{"cur_scale", &IterationState::cur_scale},
                      StateField{"cur_iter", &IterationState::cur_iter},
                      StateField{"last_overflow_iter", &IterationState::last_overflow_iter}};
  }
};

// Takes a step by `update`, which changes the state as the original's method does. An exception
// ends the step as a fatal event and leaves the state as the original would.
template <class State, class Update>
Transition<State> UpdateAsPython(const State& state, const ScalerInput& input,
                                 const Update& update) {
  Transition<State> transition{.next = state, .skip = input.overflow};
  try {
    update(transition.next);
  } catch (const PythonError& error) {
    transition.skip = true;
    transition.event = FatalEvent(error);
  }
  return transition;
}

// These throw Error (exit code 2), naming the policy and the parameter.
PythonNumber ReadPythonNumber(const Settings& settings, std::string_view name);
PythonNumber ReadPositive(const Settings& settings, std::string_view name);
PythonNumber ReadStaticScale(const Settings& settings);  // loss_scale, where 0 means dynamic
int64_t ReadCount(const Settings& settings, std::string_view name);  // |count| <= 2^53

// The note on a static scale of DeepSpeed.
constexpr const char* kStaticSkips = "the scale never changes, but overflows skip their step";

// Adds a note on a scale_factor that acts against its purpose.
void NoteFactor(const PythonNumber& scale_factor, std::vector<std::string>& notes);

// Adds a note on a scale_window of 0 where growth counts clean steps ...
void NoteWindow(const PythonNumber& scale_window, std::vector<std::string>& notes);

// ... and on growth that counts the steps after a clean one.
void NoteLaterGrowth(const PythonNumber& scale_window, std::vector<std::string>& notes);

}  // namespace dlsim::sim
