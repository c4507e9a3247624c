// SPDX-License-Identifier: Apache-2.0
#include "dlsim/format.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/scaled_format.h"
#include "src/base/text.h"

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

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

// The first number in a name, its width in bits.
std::string_view WidthIn(std::string_view name) {
  constexpr std::string_view kDigits = "0123456789";
  const size_t begin = std::min(name.find_first_of(kDigits), name.size());
  return name.substr(begin, name.find_first_not_of(kDigits, begin) - begin);
}

// Why a name that other software has is none here; empty if it is none there either.
std::string_view KnownElsewhere(const std::string& name) {
  const auto begins = [&](std::string_view text) { return name.starts_with(text); };
  const auto is_any = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, name) != names.end();
  };
  if (NamesScaledFormat(name)) {
    return " (formats with scales of their own are for replay, profile and dlsim.arrays)";
  }
  if (begins("mx") || begins("nvfp") || begins("msfp") || begins("bfp") || begins("hbfp")) {
    return " (these block scales are not supported)";
  }
  if (name.ends_with("fnuz")) return " (the fnuz encodings are not supported)";
  if (begins("int") || begins("uint")) return " (integers are not supported)";
  if (is_any({"fp32", "float32", "f32", "float", "single"})) {
    return " (float32 is what each format is compared with)";
  }
  if (is_any({"fp64", "float64", "f64", "double"})) return " (only formats within float32)";
  if (name.find("e4m3") != name.npos) return " (did you mean 'fp8-e4m3'?)";
  if (name.find("e5m2") != name.npos) return " (did you mean 'fp8-e5m2'?)";
  if (is_any({"fp8", "float8", "f8"})) return " (did you mean 'fp8-e4m3' or 'fp8-e5m2'?)";
  return "";
}

// What to add to "unknown name". Another width is no slip of the hand.
std::string HintFor(std::string_view given) {
  const std::string name = Lower(given);
  const std::string_view known = KnownElsewhere(name), width = WidthIn(name);
  if (!known.empty()) return std::string(known);
  constexpr std::array<std::string_view, 6> kWidths = {"4", "6", "8", "32", "64", "128"};
  const bool has_width = std::ranges::find(kWidths, width) != kWidths.end();
  std::vector<std::string_view> candidates;
  for (const FormatRow& row : kFormats) {
    for (const std::string_view candidate : {row.name, row.aliases[0], row.aliases[1]}) {
      if (!has_width || WidthIn(candidate) == width) candidates.push_back(candidate);
    }
  }
  const std::string_view meant = NearestName(name, candidates);
  return meant.empty() ? "" : " (did you mean '" + std::string(meant) + "'?)";
}

}  // namespace

NamedFormat ParseFormat(std::string_view name, std::string_view place) {
  std::string known;
  for (const FormatRow& row : kFormats) {
    const bool alias = !name.empty() && (name == row.aliases[0] || name == row.aliases[1]);
    if (name == row.name || alias) return {std::string(row.name), row.format};
    known.append(row.name).append(", ");
  }
  if (const std::optional<Format> format = ParseWidths(name)) {
    const std::string canonical =
        "e" + std::to_string(format->exponent_bits) + "m" + std::to_string(format->mantissa_bits);
    return {canonical, *format};
  }
  known += "or eXmY with X in 2..8 and Y in 1..22";
  throw UsageError(place, "unknown name" + HintFor(name), known, Quoted(name));
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
