// SPDX-License-Identifier: Apache-2.0
#include "sim/config/deepspeed_values.h"

#include <algorithm>
#include <array>

#include "dlsim/error.h"
#include "sim/base/suggest.h"
#include "src/base/nearest_name.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

// What pydantic takes for a bool, in upper or lower case.
constexpr std::array<std::string_view, 6> kOnWords = {"1", "on", "t", "true", "y", "yes"};
constexpr std::array<std::string_view, 6> kOffWords = {"0", "off", "f", "false", "n", "no"};

bool IsWordOf(std::string_view text, std::span<const std::string_view> words) {
  return std::ranges::any_of(words,
                             [&](std::string_view word) { return EqualsIgnoringCase(text, word); });
}

std::string VersionText(const StackVersion& version) {
  return std::to_string(version[0]) + "." + std::to_string(version[1]) + "." +
         std::to_string(version[2]);
}

}  // namespace

void DeepSpeedValues::RequireValue(std::string_view key) const {
  const ConfigNode* value = block.node().Find(key);
  if (value != nullptr && value->kind == Kind::kNull) {
    block.Refuse(key, "DeepSpeed refuses null", "a value, or no such key");
  }
}

bool DeepSpeedValues::Auto(std::string_view key, std::string_view meaning) const {
  if (!block.Is(key, "auto")) return false;
  notes.push_back((block.path().empty() ? "" : block.path() + ".") + std::string(key) +
                  " is auto: read as " + std::string(meaning));
  return true;
}

std::optional<bool> DeepSpeedValues::Bool(std::string_view key, bool if_auto) const {
  if (Auto(key, if_auto ? "true" : "false")) return if_auto;
  RequireValue(key);
  const ConfigNode* value = block.Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind == Kind::kText && release.IsBefore(kPrecisionConfig)) {
    block.Refuse(key, "DeepSpeed before 0.17.1 takes any text as true", "true or false",
                 DescribeNode(*value));
  }
  if (value->kind == Kind::kNumber && block.HasNumber(key)) {
    const double number = block.Number(key, NumberRange::kAny)->value;
    if (number == 0 || number == 1) return number == 1;
  } else if (value->kind == Kind::kText) {
    if (IsWordOf(value->text, kOnWords)) return true;
    if (IsWordOf(value->text, kOffWords)) return false;
  }
  return block.Bool(key);
}

std::optional<int64_t> DeepSpeedValues::Integer(std::string_view key,
                                                std::string_view if_auto) const {
  if (Auto(key, if_auto)) return std::nullopt;
  RequireValue(key);
  const ConfigNode* value = block.Find(key);
  if (value != nullptr && value->kind == Kind::kBool) return value->text == "true" ? 1 : 0;
  return block.Integer(key, std::numeric_limits<int64_t>::min());
}

std::optional<ConfigNumber> DeepSpeedValues::Number(std::string_view key,
                                                    std::string_view if_auto) const {
  if (Auto(key, if_auto)) return std::nullopt;
  RequireValue(key);
  return block.Number(key, NumberRange::kAny);
}

void DeepSpeedValues::RefusedSince(const StackVersion& since, std::string_view key,
                                   std::string_view what) const {
  if (release.IsBefore(since)) return;
  const std::string line =
      "DeepSpeed refuses " + std::string(what) + " since " + VersionText(since);
  if (release.named()) block.Refuse(key, line);
  const std::string path = block.path().empty() ? "" : block.path() + ".";
  notes.push_back(path + Printable(key) + ": " + line +
                  "; read as by earlier releases (--config-version)");
}

}  // namespace dlsim::sim
