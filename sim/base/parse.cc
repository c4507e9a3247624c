// SPDX-License-Identifier: Apache-2.0
#include "sim/base/parse.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "dlsim/error.h"
#include "src/base/text.h"

namespace dlsim::sim {
namespace {

bool IsDigitOrPoint(char c) { return (c >= '0' && c <= '9') || c == '.'; }

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
  const bool hex = text.size() > 2 && (text.starts_with("0x") || text.starts_with("0X"));
  if (hex) text.remove_prefix(2);
  const auto is_hex_digit = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
  };
  if (text.empty() || !(IsDigitOrPoint(text[0]) || (hex && is_hex_digit(text[0])))) return {};
  double value = 0;
  const char* const end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(
      text.data(), end, value, hex ? std::chars_format::hex : std::chars_format::general);
  if (result.ptr != end || result.ec == std::errc::invalid_argument) return {};
  if (result.ec != std::errc()) return {Status::kOutOfRange};
  return {Status::kOk, value};
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
  int64_t exact = 0;
  const char* const end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(text.data(), end, exact);
  if (result.ptr == end && result.ec == std::errc()) return exact;
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

namespace {

// Words for what has a short name here.
constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kWords = {
    {{"nearest", "rne"},
     {"round-to-nearest", "rne"},
     {"truncate", "rtz"},
     {"toward-zero", "rtz"},
     {"up", "ru"},
     {"down", "rd"},
     {"stochastic", "sr"},
     {"clamp", "saturate"}}};

}  // namespace

std::string Suggest(std::string_view name, std::span<const std::string_view> candidates) {
  for (const auto& [word, meant] : kWords) {
    const bool known = std::ranges::find(candidates, meant) != candidates.end();
    if (known && EqualsIgnoringCase(word, name)) return std::string(meant);
  }
  return std::string(NearestName(name, candidates));
}

std::string WithSuggestion(std::string_view problem, std::string_view name,
                           std::span<const std::string_view> known,
                           std::span<const std::string_view> aliases) {
  std::vector<std::string_view> all(known.begin(), known.end());
  all.insert(all.end(), aliases.begin(), aliases.end());
  const std::string meant = Suggest(name, all);
  return std::string(problem) + (meant.empty() ? "" : " (did you mean '" + meant + "'?)");
}

std::string OneOf(std::span<const std::string_view> known) {
  std::string text;
  for (const std::string_view name : known) {
    text.append(text.empty() ? "one of " : ", ").append(name);
  }
  return text;
}

Error UnknownKey(std::string_view place, const std::string& problem, std::string_view name,
                 std::vector<std::string> keys) {
  std::ranges::sort(keys);
  keys.erase(std::ranges::unique(keys).begin(), keys.end());
  const std::vector<std::string_view> known(keys.begin(), keys.end());
  return UsageError(place, WithSuggestion(problem, name, known), OneOf(known));
}

size_t ParseChoice(const std::string& option, const std::string& text,
                   const std::vector<std::string_view>& names) {
  const auto found = std::ranges::find(names, text);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  throw UsageError(option, WithSuggestion("unknown name", text, names), OneOf(names), Quoted(text));
}

namespace {

constexpr std::string_view kOption = "--device";
constexpr std::string_view kCudaPrefix = "cuda:";

Error BadDevice(const std::string& text) {
  return UsageError(kOption, "unknown device", "auto, cpu, cuda or cuda:N", Quoted(text));
}

}  // namespace

DeviceChoice ParseDevice(const std::string& text) {
  using Kind = DeviceChoice::Kind;
  if (text == "auto") return {Kind::kAuto};
  if (text == "cpu") return {Kind::kCpu};
  if (text == "cuda") return {Kind::kCuda};
  if (!text.starts_with(kCudaPrefix)) throw BadDevice(text);
  DeviceChoice choice = {Kind::kCuda};
  const char* const begin = text.data() + kCudaPrefix.size();
  const char* const end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(begin, end, choice.index);
  if (result.ec != std::errc() || result.ptr != end || *begin == '-') throw BadDevice(text);
  return choice;
}

}  // namespace dlsim::sim
