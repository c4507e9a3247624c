// SPDX-License-Identifier: Apache-2.0
#include "sim/base/number.h"

#include <charconv>
#include <cmath>
#include <optional>
#include <system_error>

#include "dlsim/error.h"

namespace dlsim::sim {
namespace {

bool IsDigitOrPoint(char c) { return (c >= '0' && c <= '9') || c == '.'; }

bool IsHexDigit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

bool IsHex(std::string_view text) {
  return text.size() > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
}

enum class Status { kOk, kNotANumber, kOutOfRange };

struct Parsed {
  Status status = Status::kNotANumber;
  double value = 0;
};

// Parses the exponent of a power of two. No power of two in range is zero or infinite.
Parsed ParsePowerOfTwo(std::string_view exponent_text) {
  int exponent = 0;
  const char* const end = exponent_text.data() + exponent_text.size();
  const std::from_chars_result result = std::from_chars(exponent_text.data(), end, exponent);
  if (result.ptr != end || result.ec == std::errc::invalid_argument) return {};
  if (result.ec != std::errc()) return {Status::kOutOfRange};
  const double value = std::ldexp(1.0, exponent);
  if (value == 0 || std::isinf(value)) return {Status::kOutOfRange};
  return {Status::kOk, value};
}

// std::from_chars wants hexadecimal digits without their 0x, and would take a sign or "inf".
Parsed ParseMagnitude(std::string_view text) {
  if (text.starts_with("2^")) return ParsePowerOfTwo(text.substr(2));
  const bool hex = IsHex(text);
  if (hex) text.remove_prefix(2);
  if (text.empty() || !(IsDigitOrPoint(text[0]) || (hex && IsHexDigit(text[0])))) return {};
  double value = 0;
  const char* const end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(
      text.data(), end, value, hex ? std::chars_format::hex : std::chars_format::general);
  if (result.ptr != end || result.ec == std::errc::invalid_argument) return {};
  if (result.ec != std::errc()) return {Status::kOutOfRange};
  return {Status::kOk, value};
}

// Returns nothing unless all of `text` is a decimal integer in range.
std::optional<int64_t> ParseDecimalInteger(std::string_view text) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(text.data(), end, value);
  if (result.ptr != end || result.ec != std::errc()) return std::nullopt;
  return value;
}

}  // namespace

double ParseNumber(std::string_view text, std::string_view place) {
  std::string_view magnitude = text;
  const bool negative = magnitude.starts_with('-');
  if (negative || magnitude.starts_with('+')) magnitude.remove_prefix(1);
  const Parsed parsed = ParseMagnitude(magnitude);
  if (parsed.status == Status::kNotANumber) {
    throw UsageError(place, "not a number", "a number such as 2^15, 2e15 or 0x1.8p+3",
                     Quoted(text));
  }
  if (parsed.status == Status::kOutOfRange) {
    throw UsageError(place, "number out of range", "a number that binary64 can hold", Quoted(text));
  }
  return negative ? -parsed.value : parsed.value;
}

int64_t ParseInteger(std::string_view text, std::string_view place) {
  if (const std::optional<int64_t> exact = ParseDecimalInteger(text)) return *exact;
  const double value = ParseNumber(text, place);
  if (value != std::trunc(value) || value < -0x1p63 || value >= 0x1p63) {
    throw UsageError(place, "not a 64-bit integer", "an integer such as 2000 or 2^10",
                     Quoted(text));
  }
  return static_cast<int64_t>(value);
}

bool ParseBool(std::string_view text, std::string_view place) {
  if (text == "true" || text == "True" || text == "1") return true;
  if (text == "false" || text == "False" || text == "0") return false;
  throw UsageError(place, "not a truth value", "true or false", Quoted(text));
}

}  // namespace dlsim::sim
