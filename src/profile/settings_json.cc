// SPDX-License-Identifier: Apache-2.0
#include "src/profile/settings_json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "src/base/check.h"
#include "src/trace/strict_json.h"

namespace dlsim {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kSchema = "dlsim.profile/1";

// A defect, before it is known where.
struct SettingError {
  std::string problem;
};

template <NamedEnum E>
E ValueOf(const Json& json) {
  const std::string text = json.get<std::string>();
  if (const std::optional<E> value = ValueNamed<E>(text)) return *value;
  throw SettingError{"damaged: unknown setting " + Quoted(text)};
}

// Ladders have no stochastic rounding.
Rounding RoundingOf(const Json& json) {
  const Rounding rounding = ValueOf<Rounding>(json);
  if (rounding != Rounding::kStochastic) return rounding;
  throw SettingError{"damaged: unknown setting " + Quoted(NameOf(rounding))};
}

std::string HexFloat(float value) {
  std::array<char, 40> text;
  const int size = std::snprintf(text.data(), text.size(), "%a", double{value});
  return std::string(text.data(), static_cast<size_t>(size));
}

float ParseHexFloat(std::string_view text) {
  float value = 0;
  const bool hex = text.starts_with("0x");
  if (hex) text.remove_prefix(2);
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value, std::chars_format::hex);
  const bool good = hex && result.ec == std::errc() && result.ptr == end && std::isfinite(value);
  if (!good || value <= 0) throw SettingError{"damaged: no scale: " + Quoted(text)};
  return value;
}

Json LadderJson(const Ladder& ladder) {
  Json json;
  json["formats"] = Json::array();
  for (const NamedFormat& named : ladder.formats) {
    const Format& format = named.format;
    json["formats"].push_back({{"name", named.name},
                               {"exponent_bits", format.exponent_bits},
                               {"mantissa_bits", format.mantissa_bits},
                               {"bias", format.bias},
                               {"specials", NameOf(format.specials)},
                               {"denormals", NameOf(format.denormals)}});
  }
  json["roundings"] = Json::array();
  for (const Rounding r : ladder.roundings) json["roundings"].push_back(NameOf(r));
  json["subnormals"] = Json::array();
  for (const Subnormals s : ladder.subnormals) json["subnormals"].push_back(NameOf(s));
  json["scales"] = Json::array();
  for (const float scale : ladder.scales) json["scales"].push_back(HexFloat(scale));
  return json;
}

int Bounded(const Json& json, int low, int high) {
  const int64_t value = json.get<int64_t>();
  if (value < low || value > high) {
    throw SettingError{"damaged: an invalid format"};
  }
  return static_cast<int>(value);
}

Ladder ParseLadder(const Json& json) {
  constexpr int kMaxExponentBits = 8, kMaxMantissaBits = 22, kMaxBias = 1 << 10;
  Ladder ladder;
  for (const Json& row : json.at("formats")) {
    NamedFormat named;
    named.name = row.at("name").get<std::string>();
    named.format.exponent_bits = Bounded(row.at("exponent_bits"), 2, kMaxExponentBits);
    named.format.mantissa_bits = Bounded(row.at("mantissa_bits"), 1, kMaxMantissaBits);
    named.format.bias = Bounded(row.at("bias"), -kMaxBias, kMaxBias);
    named.format.specials = ValueOf<Specials>(row.at("specials"));
    named.format.denormals = ValueOf<Denormals>(row.at("denormals"));
    ladder.formats.push_back(named);
  }
  for (const Json& name : json.at("roundings")) {
    ladder.roundings.push_back(RoundingOf(name));
  }
  for (const Json& name : json.at("subnormals")) {
    ladder.subnormals.push_back(ValueOf<Subnormals>(name));
  }
  for (const Json& text : json.at("scales")) {
    const float scale = ParseHexFloat(text.get<std::string>());
    if (!ladder.scales.empty() && scale <= ladder.scales.back()) {
      throw SettingError{"damaged: scales out of order"};
    }
    ladder.scales.push_back(scale);
  }
  return ladder;
}

std::vector<NamedScaledFormat> ParseScaled(const Json& json) {
  auto names = json.get<std::vector<std::string>>();
  try {
    std::vector<NamedScaledFormat> formats = TakeScaledFormats(names);
    if (names.empty()) return formats;
  } catch (const Error&) {  // below
  }
  throw SettingError{"damaged: unknown scaled formats"};
}

ProfileSettings FromJson(const Json& json) {
  if (const std::string schema = json.at("schema").get<std::string>(); schema != kSchema) {
    throw SettingError{"unknown schema of settings " + Quoted(schema)};
  }
  ProfileSettings settings;
  settings.ladder = ParseLadder(json.at("ladder"));
  if (json.contains("scaled_formats")) settings.scaled = ParseScaled(json.at("scaled_formats"));
  settings.tensors = json.at("tensors").get<std::string>();
  settings.accumulation = ValueOf<Accumulation>(json.at("accumulation"));
  settings.accumulate_steps = json.at("accumulate_steps").get<int64_t>();
  for (const auto& [key, value] : json.at("description").items()) {
    settings.description[key] = value.get<std::string>();
  }
  return settings;
}

std::string Shown(const Json& json) {
  return json.is_string() ? Quoted(json.get<std::string>()) : Printable(json.dump());
}

// Finds the first difference in the order of `expected`.
void RequireSame(const Json& expected, const Json& got, const std::string& name,
                 const std::string& place, const std::string& expected_place) {
  if (expected == got) return;
  const bool objects = expected.is_object() && got.is_object();
  const bool arrays = expected.is_array() && got.is_array();
  if (objects) {
    for (const auto& [key, value] : expected.items()) {
      const std::string inner = name.empty() ? key : name + "." + key;
      const auto other = got.find(key);
      RequireSame(value, other == got.end() ? Json() : *other, inner, place, expected_place);
    }
    for (const auto& [key, value] : got.items()) {
      if (expected.contains(key)) continue;
      RequireSame(Json(), value, name.empty() ? key : name + "." + key, place, expected_place);
    }
  } else if (arrays && expected.size() == got.size()) {
    for (size_t i = 0; i < expected.size(); ++i) {
      RequireSame(expected[i], got[i], name + "[" + std::to_string(i) + "]", place, expected_place);
    }
  }
  const auto show = [](const Json& json) {
    if (json.is_null()) return std::string("none");
    return json.is_array() ? std::to_string(json.size()) + " of them" : Shown(json);
  };
  throw InputError(place,
                   "made with other settings than " + expected_place + ": " + Printable(name),
                   show(expected), show(got));
}

}  // namespace

std::string SettingsText(const std::string& place, const ProfileSettings& settings) {
  Json json;
  json["schema"] = std::string(kSchema);
  json["ladder"] = LadderJson(settings.ladder);
  for (const NamedScaledFormat& format : settings.scaled) {
    json["scaled_formats"].push_back(format.name);
  }
  json["tensors"] = settings.tensors;
  json["accumulation"] = NameOf(settings.accumulation);
  json["accumulate_steps"] = settings.accumulate_steps;
  json["description"] = Json::object();
  for (const auto& [key, value] : settings.description) json["description"][key] = value;
  try {
    return json.dump();
  } catch (const nlohmann::json::exception& exception) {
    throw InputError(place, "settings that a profile cannot hold: " + JsonMessage(exception));
  }
}

ProfileSettings ParseSettings(const std::string& place, const std::string& text) {
  try {
    CheckStrictJson(place, text);
    const ProfileSettings settings = FromJson(Json::parse(text));
    if (SettingsText(place, settings) != text) {
      throw SettingError{"damaged: settings that this version does not know"};
    }
    return settings;
  } catch (const nlohmann::json::exception& exception) {
    throw InputError(place, "damaged settings: " + JsonMessage(exception));
  } catch (const SettingError& error) {
    throw InputError(place, error.problem);
  }
}

void RequireSameSettings(const std::string& expected_place, const std::string& expected,
                         const std::string& place, const std::string& text) {
  if (expected == text) return;
  RequireSame(Json::parse(expected), Json::parse(text), "", place, expected_place);
}

}  // namespace dlsim
