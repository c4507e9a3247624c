// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/log_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>
#include <system_error>
#include <utility>

#include "sim/base/word_character.h"

namespace dlsim::sim {
namespace {

constexpr char kEscape = '\x1b';
constexpr std::string_view kBetween = " \t:=\"'[(";

// Returns half a unit of the last digit of a decimal number; 0 for an integer.
double HalfUnit(std::string_view digits) {
  const size_t e = digits.find_first_of("eE");
  const std::string_view mantissa = digits.substr(0, e);
  const size_t point = mantissa.find('.');
  if (point == std::string_view::npos && e == std::string_view::npos) return 0;
  int exponent = 0;
  if (e != std::string_view::npos) {
    std::string_view text = digits.substr(e + 1);
    if (text.starts_with('+')) text.remove_prefix(1);
    std::from_chars(text.data(), text.data() + text.size(), exponent);
  }
  const size_t decimals = point == std::string_view::npos ? 0 : mantissa.size() - point - 1;
  return 0.5 * std::pow(10.0, static_cast<double>(exponent) - static_cast<double>(decimals));
}

// Returns the digits of "65,536", and how long that is; nothing without such groups of three.
std::optional<std::pair<std::string, size_t>> Grouped(std::string_view text) {
  static constexpr std::string_view kDigits = "0123456789";
  size_t end = std::min(text.size(), text.find_first_not_of(kDigits));
  std::string digits(text.substr(0, end));
  if (digits.empty() || end > 3) return std::nullopt;
  while (end < text.size() && text[end] == ',') {
    const std::string_view after = text.substr(end + 1);
    if (std::min(after.size(), after.find_first_not_of(kDigits)) != 3) break;
    digits += after.substr(0, 3);
    end += 4;
  }
  if (digits.size() == end) return std::nullopt;  // no group
  if (end < text.size() && text[end] == '.') {
    const std::string_view after = text.substr(end + 1);
    const size_t decimals = std::min(after.size(), after.find_first_not_of(kDigits));
    digits += text.substr(end, decimals + 1);
    end += decimals + 1;
  }
  return std::pair(digits, end);
}

// Whether what follows a number makes it another one: "64k", "2^16", "2**16".
bool IsContinued(std::string_view after) {
  static constexpr std::string_view kThousands = "kKmMgG";
  if (after.starts_with('^') || after.starts_with("**")) return true;
  return !after.empty() && kThousands.find(after.front()) != kThousands.npos &&
         (after.size() == 1 || !IsWordCharacter(after[1]));
}

// Returns the end of the escape sequence that begins at `start`.
size_t EndOfSequence(std::string_view text, size_t start) {
  if (start + 1 >= text.size()) return text.size();
  if (text[start + 1] == ']') {  // up to a bell, or to ESC and a backslash
    const size_t end = text.find_first_of("\a\x1b", start + 2);
    if (end == std::string_view::npos) return text.size();
    return std::min(text.size(), end + (text[end] == kEscape ? 2 : 1));
  }
  if (text[start + 1] != '[') return start + 2;
  size_t end = start + 2;
  while (end < text.size() && (text[end] < '@' || text[end] > '~')) ++end;
  return std::min(text.size(), end + 1);
}

}  // namespace

std::string_view StripTerminalCodes(std::string_view text, std::string& plain) {
  if (text.find(kEscape) == std::string_view::npos) return text;
  for (size_t i = 0; i < text.size();) {
    if (text[i] == kEscape) {
      i = EndOfSequence(text, i);
    } else {
      plain += text[i++];
    }
  }
  return plain;
}

void AddFloat32(PrintedNumber& number) {
  constexpr double kLastExact = 0x1p24, kLargest = 0x1p127;
  if (!(number.value > kLastExact && number.value <= kLargest)) return;
  const double power = std::exp2(std::round(std::log2(number.value)));
  if (power == number.value) return;
  std::array<char, 64> digits{};
  const auto end = std::to_chars(digits.begin(), digits.end(), static_cast<float>(power),
                                 std::chars_format::scientific)
                       .ptr;
  double shortest = 0;
  std::from_chars(digits.begin(), end, shortest);
  if (shortest != number.value) return;
  number = {power, std::min(number.low, power), std::max(number.high, power)};
}

std::optional<PrintedNumber> ReadPrinted(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::invalid_argument) return std::nullopt;
  const std::string_view digits = text.substr(0, static_cast<size_t>(end - text.data()));
  // Below the smallest subnormal, or beyond the largest finite number.
  if (error == std::errc::result_out_of_range)
    value = std::strtod(std::string(digits).c_str(), nullptr);
  if (!std::isfinite(value)) return PrintedNumber{value, value, value};
  const double slack = HalfUnit(digits);
  PrintedNumber number = {value, value - slack, value + slack};
  if (slack > 0 && value > 0) {
    const double power = std::exp2(std::round(std::log2(value)));
    if (number.Holds(power)) number.value = power;
  }
  if (slack > 0) AddFloat32(number);
  return number;
}

std::optional<PrintedNumber> ReadWhole(std::string_view text) {
  if (const auto grouped = Grouped(text)) {
    return IsContinued(text.substr(grouped->second)) ? std::nullopt : ReadPrinted(grouped->first);
  }
  const auto number = ReadPrinted(text);
  const size_t end = text.find_first_not_of("+-.0123456789eE");
  const bool continued = end != std::string_view::npos && IsContinued(text.substr(end));
  return continued ? std::nullopt : number;
}

std::optional<PrintedNumber> NumberAfter(std::string_view text, std::string_view name) {
  for (size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    const size_t end = at + name.size();
    const bool begins_word = IsWordCharacter(name.front()),
               ends_word = IsWordCharacter(name.back());
    if (begins_word && at > 0 && IsWordCharacter(text[at - 1])) continue;
    if (ends_word && end < text.size() && IsWordCharacter(text[end])) continue;
    const size_t start = text.find_first_not_of(kBetween, end);
    if (start == std::string_view::npos) continue;
    if (const auto number = ReadWhole(text.substr(start))) return number;
  }
  return std::nullopt;
}

std::optional<int64_t> IntegerAfter(std::string_view text, std::string_view name) {
  const std::optional<PrintedNumber> number = NumberAfter(text, name);
  if (!number || number->value != std::trunc(number->value) || !(std::fabs(number->value) < 0x1p53))
    return std::nullopt;
  return static_cast<int64_t>(number->value);
}

bool Has(std::string_view text, std::string_view words) {
  return text.find(words) != std::string_view::npos;
}

std::optional<std::string_view> TextAfter(std::string_view text, std::string_view words) {
  const size_t at = text.find(words);
  if (at == std::string_view::npos) return std::nullopt;
  return text.substr(at + words.size());
}

std::optional<int64_t> NumberOfStep(int64_t epoch, int64_t steps_per_epoch, int64_t step) {
  const double number =
      static_cast<double>(epoch) * static_cast<double>(steps_per_epoch) + static_cast<double>(step);
  if (!(std::fabs(number) < 0x1p53)) return std::nullopt;
  return epoch * steps_per_epoch + step;
}

PrintedNumber Truncated(PrintedNumber number) {
  if (number.low == number.high && number.value >= 0 && number.value < 0x1p52) {
    number.high = std::nextafter(number.value + 1, number.value);
  }
  return number;
}

}  // namespace dlsim::sim
