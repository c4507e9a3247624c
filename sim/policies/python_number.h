// SPDX-License-Identifier: Apache-2.0
// Numbers of Python: integers of any size and floats, with Python's results and exceptions. Scalers
// that hold their scale as a Python number have an integer until the first division.
#pragma once

#include <boost/multiprecision/cpp_int.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "dlsim/sim/loss_scaler.h"

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

  // How many numbers from `count` on it does not divide; 0 if this is not known.
  int64_t AlikeUntilMultiple(int64_t count) const;

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

// What fields of states and parameters of this type show: an integer up to 2^53, else a float. An
// integer field stays one when it is set to a whole number.
std::variant<bool, int64_t, double, std::string> FieldValue(const PythonNumber& field);
bool SetFromNumber(double value, PythonNumber& field);

}  // namespace dlsim::sim
