// SPDX-License-Identifier: Apache-2.0
#include "sim/base/quantity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>

#include "dlsim/error.h"
#include "sim/base/parse.h"

namespace dlsim::sim {
namespace {

bool IsScale(std::string_view name) {
  const auto has = [&](std::string_view part) { return name.find(part) != name.npos; };
  return has("scale") && !has("factor") && !has("window");
}

}  // namespace

bool IsPowerOfTwo(double value) {
  int exponent = 0;
  return value > 0 && std::isfinite(value) && std::frexp(value, &exponent) == 0.5;
}

std::string ScaleText(double scale) {
  if (scale == 1 || !(scale > 0) || std::isinf(scale)) {
    return fmt::format("{}", WithoutNanSign(scale));
  }
  const double exponent = std::log2(scale);
  if (exponent == std::round(exponent)) return fmt::format("2^{}", std::lround(exponent));
  return fmt::format("2^{:.2f}", exponent);
}

std::string ScaleNumber(double scale) {
  if (scale == std::floor(scale) && scale <= 0x1p53) return fmt::format("{:.0f}", scale);
  if (scale == static_cast<double>(static_cast<float>(scale))) {
    const std::string text = fmt::format("{}", static_cast<float>(scale));
    if (ParseNumber(text, "scale") == scale) return text;
  }
  return fmt::format("{}", WithoutNanSign(scale));
}

std::string NumberText(double value) {
  const bool integer = value == std::rint(value) && std::fabs(value) < 1e15;
  return integer ? fmt::format("{:.0f}", value) : fmt::format("{}", WithoutNanSign(value));
}

std::string Bytes(uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string Percent(double fraction) {
  if (fraction == 0) return "0";
  return fraction >= 0.0001 ? fmt::format("{:.3g} %", 100 * fraction)
                            : fmt::format("{:.1e} %", WithoutNanSign(100 * fraction));
}

std::string FirstNames(const std::vector<std::string>& names, size_t all) {
  const size_t shown = std::min<size_t>(3, names.size());
  const std::string first = fmt::format("{}", fmt::join(std::span(names).first(shown), ", "));
  return shown < all ? fmt::format("{} and {} more", first, all - shown) : first;
}

std::string Counted(uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string ParameterText(std::string_view name, const std::string& value) {
  if (!IsScale(name)) return value;
  try {
    const double number = ParseNumber(value, name);
    return IsPowerOfTwo(number) ? ScaleText(number) : value;
  } catch (const Error&) {
    return value;
  }
}

std::string ParameterText(const NamedValue& parameter) {
  if (const auto* number = std::get_if<double>(&parameter.value)) {
    return IsScale(parameter.name) && IsPowerOfTwo(*number)
               ? ScaleText(*number)
               : fmt::format("{:g}", WithoutNanSign(*number));
  }
  return std::visit(
      [&](const auto& value) { return ParameterText(parameter.name, fmt::format("{}", value)); },
      parameter.value);
}

std::string ParametersText(std::span<const NamedValue> parameters) {
  std::string text;
  for (const NamedValue& parameter : parameters) {
    text += (text.empty() ? "" : ", ") + parameter.name + " " + ParameterText(parameter);
  }
  return text;
}

std::string HexFloat(double value) {
  if (std::isnan(value)) return "nan";
  const std::string sign = std::signbit(value) ? "-" : "";
  if (std::isinf(value)) return sign + "inf";
  if (value == 0) return sign + "0x0.0p+0";
  constexpr char kHex[] = "0123456789abcdef";
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const int biased_exponent = static_cast<int>(bits >> 52 & 0x7FF);
  std::string text = sign + (biased_exponent == 0 ? "0x0." : "0x1.");
  for (int shift = 48; shift >= 0; shift -= 4) text.push_back(kHex[bits >> shift & 0xF]);
  const int exponent = biased_exponent == 0 ? -1022 : biased_exponent - 1023;
  return text + (exponent < 0 ? "p" : "p+") + std::to_string(exponent);
}

std::string PythonRepr(double value) {
  const double magnitude = std::fabs(value);
  const bool fixed = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  char buffer[32];
  const std::to_chars_result result =
      std::to_chars(buffer, buffer + sizeof(buffer), value,
                    fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, result.ptr);
  if (fixed && text.find('.') == std::string::npos) text.append(".0");
  return text;
}

}  // namespace dlsim::sim
