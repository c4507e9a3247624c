// SPDX-License-Identifier: Apache-2.0
#include "sim/policies/python_number.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <utility>

#include "sim/base/parse.h"
#include "sim/base/quantity.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using BigInt = PythonNumber::BigInt;

// Larger integers become this power of two. Operands come from the user and lie below 2^1024, so
// that every product and quotient of such an integer already has the same outcome as the true one.
// Without the bound an integer that triples at each step would slow down for ever.
constexpr unsigned kMaxBits = 4096;

int64_t BitLength(const BigInt& magnitude) {
  return magnitude == 0 ? 0 : static_cast<int64_t>(msb(magnitude)) + 1;
}

// Rounds quotient * 2^exponent to the nearest binary64, ties to even. The lowest bit of `quotient`,
// which has 62 or 63 bits, also stands for everything below it.
double RoundToDouble(uint64_t quotient, int bits, int64_t exponent) {
  const int64_t top = exponent + bits - 1;                 // log2 of the value, rounded down
  const int64_t kept = std::min<int64_t>(53, top + 1075);  // fewer for a subnormal result
  if (kept < 0) return 0;
  const int64_t dropped = bits - kept;
  const uint64_t half = uint64_t{1} << (dropped - 1);
  const uint64_t rest = quotient & (2 * half - 1);
  uint64_t rounded = quotient >> dropped;
  if (rest > half || (rest == half && (rounded & 1) != 0)) ++rounded;
  return std::ldexp(static_cast<double>(rounded), static_cast<int>(exponent + dropped));
}

// Returns a / b correctly rounded, infinity if it is too large; b is not 0.
double TrueQuotient(const BigInt& a, const BigInt& b) {
  if (a == 0) return b.sign() < 0 ? -0.0 : 0.0;
  if (b == 1 && BitLength(abs(a)) <= 53) return static_cast<double>(static_cast<int64_t>(a));
  const BigInt numerator = abs(a);
  const BigInt denominator = abs(b);
  const int64_t shift = 62 - (BitLength(numerator) - BitLength(denominator));
  BigInt quotient;
  BigInt remainder;
  if (shift >= 0) {
    divide_qr(BigInt(numerator << static_cast<unsigned>(shift)), denominator, quotient, remainder);
  } else {
    divide_qr(numerator, BigInt(denominator << static_cast<unsigned>(-shift)), quotient, remainder);
  }
  const uint64_t digits = static_cast<uint64_t>(quotient) | (remainder != 0 ? 1U : 0U);
  const double result = RoundToDouble(digits, static_cast<int>(BitLength(quotient)), -shift);
  return a.sign() == b.sign() ? result : -result;
}

// The exact value of a finite float without its fraction.
BigInt Truncated(double value) {
  if (std::fabs(value) < 0x1p63) return static_cast<int64_t>(value);
  int exponent = 0;
  const double fraction = std::frexp(std::trunc(value), &exponent);
  const BigInt digits = static_cast<int64_t>(std::ldexp(fraction, 53));
  if (exponent >= 53) return digits << static_cast<unsigned>(exponent - 53);
  return digits / (BigInt(1) << static_cast<unsigned>(53 - exponent));
}

std::partial_ordering CompareToFloat(const BigInt& a, double b) {
  if (!std::isfinite(b)) return 0.0 <=> b;
  const int integer_part = a.compare(Truncated(b));
  if (integer_part != 0) return integer_part <=> 0;
  return 0.0 <=> b - std::trunc(b);
}

using Value = std::variant<BigInt, double>;

std::partial_ordering Compare(const Value& a, const Value& b) {
  const BigInt* const int_a = std::get_if<BigInt>(&a);
  const BigInt* const int_b = std::get_if<BigInt>(&b);
  if (int_a != nullptr && int_b != nullptr) return int_a->compare(*int_b) <=> 0;
  if (int_a != nullptr) return CompareToFloat(*int_a, std::get<double>(b));
  if (int_b != nullptr) return 0 <=> CompareToFloat(*int_b, std::get<double>(a));
  return std::get<double>(a) <=> std::get<double>(b);
}

// An operand of an operation with a float.
double AsFloat(const Value& value) {
  if (const double* const number = std::get_if<double>(&value)) return *number;
  const double number = TrueQuotient(std::get<BigInt>(value), 1);
  if (std::isfinite(number)) return number;
  throw PythonError{"OverflowError", "int too large to convert to float"};
}

bool IsHexInteger(std::string_view digits) {
  return (digits.starts_with("0x") || digits.starts_with("0X")) &&
         digits.find_first_of(".pP") == std::string_view::npos;
}

}  // namespace

PythonNumber PythonNumber::Int(BigInt value) {
  PythonNumber number;
  if (BitLength(abs(value)) > kMaxBits) value = BigInt(value.sign()) << kMaxBits;
  number.value_ = std::move(value);
  return number;
}

PythonNumber PythonNumber::Float(double value) {
  PythonNumber number;
  number.value_ = value;
  return number;
}

double PythonNumber::ToDouble() const {
  const double* const number = std::get_if<double>(&value_);
  return number != nullptr ? *number : TrueQuotient(std::get<BigInt>(value_), 1);
}

std::string PythonNumber::Repr() const {
  const double* const number = std::get_if<double>(&value_);
  return number != nullptr ? PythonRepr(*number) : std::get<BigInt>(value_).str();
}

PythonNumber operator*(const PythonNumber& a, const PythonNumber& b) {
  if (a.is_int() && b.is_int()) {
    return PythonNumber::Int(std::get<BigInt>(a.value_) * std::get<BigInt>(b.value_));
  }
  return PythonNumber::Float(AsFloat(a.value_) * AsFloat(b.value_));
}

PythonNumber operator/(const PythonNumber& a, const PythonNumber& b) {
  if (!a.is_int() || !b.is_int()) {
    const double numerator = AsFloat(a.value_);
    const double denominator = AsFloat(b.value_);
    if (denominator == 0) throw PythonError{"ZeroDivisionError", "float division by zero"};
    return PythonNumber::Float(numerator / denominator);
  }
  const BigInt& denominator = std::get<BigInt>(b.value_);
  if (denominator == 0) throw PythonError{"ZeroDivisionError", "division by zero"};
  const double quotient = TrueQuotient(std::get<BigInt>(a.value_), denominator);
  if (std::isfinite(quotient)) return PythonNumber::Float(quotient);
  throw PythonError{"OverflowError", "integer division result too large for a float"};
}

bool operator==(const PythonNumber& a, const PythonNumber& b) {
  return Compare(a.value_, b.value_) == 0;
}

bool operator<(const PythonNumber& a, const PythonNumber& b) {
  return Compare(a.value_, b.value_) < 0;
}

bool PythonNumber::Divides(int64_t count) const {
  if (const BigInt* const divisor = std::get_if<BigInt>(&value_)) {
    if (*divisor == 0) throw PythonError{"ZeroDivisionError", "integer modulo by zero"};
    return BitLength(abs(*divisor)) < 64 ? count % static_cast<int64_t>(*divisor) == 0
                                         : BigInt(count) % *divisor == 0;
  }
  const double divisor = std::get<double>(value_);
  if (divisor == 0) throw PythonError{"ZeroDivisionError", "float modulo"};
  return std::fmod(static_cast<double>(count), divisor) == 0;
}

PythonNumber Max(const PythonNumber& a, const PythonNumber& b) { return a < b ? b : a; }

void CheckConvertsToInt(const PythonNumber& value) {
  if (value.is_int() || std::isfinite(value.ToDouble())) return;
  if (std::isnan(value.ToDouble())) {
    throw PythonError{"ValueError", "cannot convert float NaN to integer"};
  }
  throw PythonError{"OverflowError", "cannot convert float infinity to integer"};
}

PythonNumber ParsePythonNumber(std::string_view text, std::string_view place) {
  const double value = ParseNumber(text, place);
  std::string_view magnitude = text;
  if (magnitude.starts_with('-') || magnitude.starts_with('+')) magnitude.remove_prefix(1);
  if (magnitude.starts_with("2^")) {
    const bool whole = value == std::trunc(value);
    return whole ? PythonNumber::Int(Truncated(value)) : PythonNumber::Float(value);
  }
  const bool hex = IsHexInteger(magnitude);
  if (!hex && magnitude.find_first_not_of("0123456789") != std::string_view::npos) {
    return PythonNumber::Float(value);
  }
  // Boost would read a leading 0 as octal.
  const size_t first = magnitude.find_first_not_of('0');
  if (first == std::string_view::npos) return PythonNumber();
  const BigInt digits(std::string(hex ? magnitude : magnitude.substr(first)));
  return PythonNumber::Int(text.starts_with('-') ? BigInt(-digits) : digits);
}

ShownValue FieldValue(const PythonNumber& field) {
  const double value = field.ToDouble();
  if (!field.is_int() || std::fabs(value) > 0x1p53) return value;
  return static_cast<int64_t>(value);
}

bool SetFromNumber(double value, PythonNumber& field) {
  const bool stays_int = field.is_int() && value == std::trunc(value) && std::isfinite(value);
  field = stays_int ? PythonNumber::Int(Truncated(value)) : PythonNumber::Float(value);
  return true;
}

ShownValue ReadParameter(const Settings& settings, std::string_view name, PythonNumber& into) {
  const std::string place = std::string(settings.policy).append(".").append(name);
  into = ParsePythonNumber(settings.Text(name), place);
  return FieldValue(into);
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

}  // namespace dlsim::sim
