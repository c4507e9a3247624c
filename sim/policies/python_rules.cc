// SPDX-License-Identifier: Apache-2.0
#include "sim/policies/python_rules.h"

#include "dlsim/error.h"

namespace dlsim::sim {
namespace {

std::string Place(const Settings& settings, std::string_view name) {
  return std::string(settings.policy).append(".").append(name);
}

}  // namespace

ScalerEvent FatalEvent(const PythonError& error) {
  return {.type = error.type, .message = error.message, .fatal = true, .details = {}};
}

PythonNumber ReadPythonNumber(const Settings& settings, std::string_view name) {
  return ParsePythonNumber(settings.Text(name), Place(settings, name));
}

PythonNumber ReadPositive(const Settings& settings, std::string_view name) {
  const PythonNumber number = ReadPythonNumber(settings, name);
  if (PythonNumber() < number) return number;
  throw UsageError(Place(settings, name), "not a loss scale", "a positive number",
                   Quoted(settings.Text(name)));
}

PythonNumber ReadStaticScale(const Settings& settings) {
  const PythonNumber zero;
  const PythonNumber scale = ReadPythonNumber(settings, "loss_scale");
  if (scale == zero || zero < scale) return scale;
  throw UsageError(Place(settings, "loss_scale"), "not a loss scale", "a positive number, or 0",
                   Quoted(settings.Text("loss_scale")));
}

int64_t ReadCount(const Settings& settings, std::string_view name) {
  constexpr int64_t kLimit = int64_t{1} << 53;
  const int64_t count = settings.Integer(name);
  if (count >= -kLimit && count <= kLimit) return count;
  throw UsageError(Place(settings, name), "out of range", "at most 2^53 either way",
                   Quoted(settings.Text(name)));
}

void NoteFactor(const PythonNumber& scale_factor, std::vector<std::string>& notes) {
  const PythonNumber zero;
  const PythonNumber one = PythonNumber::Int(1);
  if (scale_factor == zero) {
    notes.push_back(
        "scale_factor 0: the first overflow that divides by it raises "
        "ZeroDivisionError");
  } else if (scale_factor < zero) {
    notes.push_back("scale_factor below 0: growth makes the scale negative");
  } else if (scale_factor < one) {
    notes.push_back(
        "scale_factor below 1: the scale falls when it should grow, and overflows "
        "raise it");
  } else if (scale_factor == one) {
    notes.push_back("scale_factor 1: the scale does not change");
  }
}

void NoteWindow(const PythonNumber& scale_window, std::vector<std::string>& notes) {
  if (scale_window == PythonNumber()) {
    notes.push_back("scale_window 0: the first clean step raises ZeroDivisionError");
  }
}

void NoteLaterGrowth(const PythonNumber& scale_window, std::vector<std::string>& notes) {
  notes.push_back(
      scale_window == PythonNumber()
          ? "scale_window 0: the second clean step in a row raises ZeroDivisionError"
          : "the scale first grows after scale_window + 1 clean steps, then every scale_window");
}

}  // namespace dlsim::sim
