// SPDX-License-Identifier: Apache-2.0
#include "dlsim/format.h"

#include <charconv>
#include <cmath>
#include <optional>
#include <vector>

#include "dlsim/error.h"
#include "src/base/nearest_name.h"

namespace dlsim {
namespace {

constexpr bool FitsFloat32(const Format& f) {
  return f.exponent_bits >= 2 && f.exponent_bits <= 8 && f.mantissa_bits >= 1 &&
         f.mantissa_bits <= 22 && f.bias >= 1 && f.bias <= 127;
}

constexpr bool AllRowsFit() {
  for (const FormatRow& row : kFormats) {
    if (!FitsFloat32(row.format)) return false;
  }
  return true;
}
static_assert(AllRowsFit());

// Value of a finite code: every finite value of every format is exact in float64.
double ValueOfCode(const Format& f, uint32_t code) {
  const uint32_t exponent = code >> f.mantissa_bits;
  const double mantissa = code & ((1u << f.mantissa_bits) - 1);
  const double unit = std::ldexp(1.0, -f.mantissa_bits);
  if (exponent == 0 && f.denormals == Denormals::kGradual) {
    return std::ldexp(mantissa * unit, 1 - f.bias);
  }
  return std::ldexp(1.0 + mantissa * unit, static_cast<int>(exponent) - f.bias);
}

std::optional<int> ParseField(std::string_view& text, char letter) {
  int value = 0;
  if (text.empty() || text[0] != letter) return std::nullopt;
  const char* begin = text.data() + 1;
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
  if (error != std::errc() || begin == end || *begin == '-') return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

// Parses `eXmY`.
std::optional<Format> ParseWidths(std::string_view name) {
  const std::optional<int> exponent = ParseField(name, 'e');
  const std::optional<int> mantissa = exponent ? ParseField(name, 'm') : std::nullopt;
  if (!mantissa || !name.empty() || *exponent < 2 || *exponent > 8) return std::nullopt;
  const Format format = {*exponent, *mantissa, (1 << (*exponent - 1)) - 1};
  return FitsFloat32(format) ? std::optional(format) : std::nullopt;
}

}  // namespace

NamedFormat ParseFormat(std::string_view name) {
  std::string known;
  std::vector<std::string_view> candidates;
  for (const FormatRow& row : kFormats) {
    const bool alias = !name.empty() && (name == row.aliases[0] || name == row.aliases[1]);
    if (name == row.name || alias) return {std::string(row.name), row.format};
    known.append(row.name).append(", ");
    candidates.insert(candidates.end(), {row.name, row.aliases[0], row.aliases[1]});
  }
  if (const std::optional<Format> format = ParseWidths(name)) {
    const std::string canonical =
        "e" + std::to_string(format->exponent_bits) + "m" + std::to_string(format->mantissa_bits);
    return {canonical, *format};
  }
  known += "or eXmY with X in 2..8 and Y in 1..22";
  const std::string_view meant = NearestName(name, candidates);
  const std::string hint = meant.empty() ? "" : " (did you mean '" + std::string(meant) + "'?)";
  throw UsageError("format", "unknown name" + hint, known, Quoted(name));
}

double MaxFinite(const Format& f) { return ValueOfCode(f, MaxFiniteCode(f)); }

double MinNormal(const Format& f) { return ValueOfCode(f, MinNormalCode(f)); }

double MinPositive(const Format& f) { return ValueOfCode(f, 1); }

double OverflowThreshold(const Format& f) {
  // The first code past the largest finite one, read as a number. A tie goes to the even code.
  const double next = ValueOfCode(f, MaxFiniteCode(f) + 1);
  const double midpoint = (MaxFinite(f) + next) / 2;
  const bool tie_overflows = MaxFiniteCode(f) % 2 == 1;
  return tie_overflows ? midpoint : std::nextafter(midpoint, next);
}

}  // namespace dlsim
