// SPDX-License-Identifier: Apache-2.0
#include "sim/base/quantity.h"

#include <fmt/format.h>

#include <cmath>

#include "dlsim/error.h"
#include "sim/base/number.h"

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
  if (scale == 1 || !(scale > 0) || std::isinf(scale)) return fmt::format("{}", scale);
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
  return fmt::format("{}", scale);
}

std::string Percent(double fraction) {
  if (fraction == 0) return "0";
  return fraction >= 0.0001 ? fmt::format("{:.3g} %", 100 * fraction)
                            : fmt::format("{:.1e} %", 100 * fraction);
}

std::string Counted(uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string ParameterText(std::string_view name, double value) {
  return IsScale(name) && IsPowerOfTwo(value) ? ScaleText(value) : fmt::format("{:g}", value);
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

}  // namespace dlsim::sim
