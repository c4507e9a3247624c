// SPDX-License-Identifier: Apache-2.0
// Numbers of Python: integers of any size and floats, with Python's results and exceptions. Scalers
// that hold their scale as a Python number have an integer until the first division.
#pragma once

#include <boost/multiprecision/cpp_int.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "dlsim/sim/loss_scaler.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {

// An exception that the original's Python code would raise.
struct PythonError {
  std::string type;     // such as "ZeroDivisionError"
  std::string message;  // str() of the exception
};

class PythonNumber {
 public:
  using BigInt = boost::multiprecision::number<boost::multiprecision::cpp_int_backend<>,
                                               boost::multiprecision::et_off>;

  PythonNumber() = default;  // the integer 0
  static PythonNumber Int(BigInt value);
  static PythonNumber Float(double value);

  bool is_int() const { return std::holds_alternative<BigInt>(value_); }

  // The nearest binary64 number; infinity for an integer that rounds past the largest.
  double ToDouble() const;
  explicit operator double() const { return ToDouble(); }

  // The text of Python's repr(), for finite numbers.
  std::string Repr() const;

  // These throw PythonError where Python raises.
  friend PythonNumber operator*(const PythonNumber& a, const PythonNumber& b);
  friend PythonNumber operator/(const PythonNumber& a, const PythonNumber& b);

  // Exact also between an integer and a float; a NaN is unordered.
  friend bool operator==(const PythonNumber& a, const PythonNumber& b);
  friend bool operator<(const PythonNumber& a, const PythonNumber& b);

  // True if `count % *this == 0` in Python; throws PythonError if *this is 0.
  bool Divides(int64_t count) const;

 private:
  std::variant<BigInt, double> value_;
};

// Python's max(a, b): `a` unless b is greater.
PythonNumber Max(const PythonNumber& a, const PythonNumber& b);

// Throws PythonError as int(value) does for infinity and NaN.
void CheckConvertsToInt(const PythonNumber& value);

// Reads a number as ParseNumber does, with the type that it has in Python: "65536", "0xff" and
// "2^16" are integers, "65536.0", "2e4" and "2^-1" floats.
PythonNumber ParsePythonNumber(std::string_view text, std::string_view place);
ShownValue ReadParameter(const Settings& settings, std::string_view name, PythonNumber& into);

// What fields of states and parameters of this type show: an integer up to 2^53, else a float. An
// integer field stays one when it is set to a whole number.
ShownValue FieldValue(const PythonNumber& field);
bool SetFromNumber(double value, PythonNumber& field);

// What the policies share whose originals are Python code on Python numbers.

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
    transition.event = FatalEvent(error.type, error.message);
  }
  return transition;
}

// Adds a note on a scale_factor that acts against its purpose.
void NoteFactor(const PythonNumber& scale_factor, std::vector<std::string>& notes);

// Adds a note on a scale_window of 0 where growth counts clean steps.
void NoteWindow(const PythonNumber& scale_window, std::vector<std::string>& notes);

}  // namespace dlsim::sim
