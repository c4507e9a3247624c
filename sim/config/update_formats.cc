// SPDX-License-Identifier: Apache-2.0
#include "sim/config/update_formats.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "sim/base/number.h"
#include "sim/config/shell_script.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

struct TypeName {
  std::string_view type, format;
};

constexpr std::array<TypeName, 9> kTypeFormats = {{{"bf16", "bf16"},
                                                   {"bfloat16", "bf16"},
                                                   {"fp16", "fp16"},
                                                   {"float16", "fp16"},
                                                   {"half", "fp16"},
                                                   {"fp32", kFloat32Name},
                                                   {"float32", kFloat32Name},
                                                   {"float", kFloat32Name},
                                                   {"32", kFloat32Name}}};

std::optional<double> NumberIn(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t([");
  if (begin == text.npos) return std::nullopt;
  text.remove_prefix(begin);
  text = text.substr(0, text.find_last_not_of(" \t)]") + 1);
  if (text.empty() || text.find_first_not_of("0123456789.eE+-") != text.npos) return std::nullopt;
  try {
    return ParseNumber(text, "");
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

UpdateFormats PureFormats(std::string_view type, std::string_view reduce) {
  const std::string name(type);
  return {.weights = name,
          .master = std::string(kNoMaster),
          .first = name,
          .second = name,
          .gradients = name,
          .reduce = std::string(reduce)};
}

UpdateFormats MasterFormats(std::string_view type) {
  const std::string name(type), wide(kFloat32Name);
  return {.weights = name,
          .master = wide,
          .first = wide,
          .second = wide,
          .gradients = name,
          .reduce = name};
}

UpdateFormats AutocastFormats(std::string_view type) {
  UpdateFormats formats = MasterFormats(type);
  formats.gradients = formats.reduce = std::nullopt;
  return formats;
}

std::optional<std::string> FormatOfType(std::string_view type) {
  if (type.starts_with("torch.")) type.remove_prefix(6);
  const auto found = std::ranges::find(kTypeFormats, type, &TypeName::type);
  if (found == kTypeFormats.end()) return std::nullopt;
  return std::string(found->format);
}

ClearKeys::ClearKeys(const ConfigBlock& block)
    : table_(&block.node()), is_complete_(table_->Find(std::string(1, kUnknownText)) == nullptr) {}

bool ClearKeys::Has(std::string_view key) const {
  const ConfigNode* value = table_->Find(key);
  return value != nullptr && value->kind != Kind::kNull;
}

const ConfigNode* ClearKeys::Find(std::string_view key) const {
  const ConfigNode* found = nullptr;
  for (const ConfigEntry& entry : table_->entries) {
    if (entry.key != key) continue;
    if (found != nullptr) return nullptr;
    found = &entry.value;
  }
  if (found == nullptr || found->kind == Kind::kNull) return nullptr;
  return found->text.find(kUnknownText) == std::string::npos ? found : nullptr;
}

std::optional<double> ClearKeys::Number(std::string_view key) const {
  const ConfigNode* value = Find(key);
  if (value == nullptr || (value->kind != Kind::kNumber && value->kind != Kind::kText)) {
    return std::nullopt;
  }
  return NumberIn(value->text);
}

std::optional<std::string> ClearKeys::Text(std::string_view key) const {
  const ConfigNode* value = Find(key);
  if (value == nullptr || value->kind != Kind::kText) return std::nullopt;
  return value->text;
}

std::optional<bool> ClearKeys::Switch(std::string_view key) const {
  if (!Has(key)) return is_complete_ ? std::optional(false) : std::nullopt;
  const ConfigNode* value = Find(key);
  if (value == nullptr || value->kind != Kind::kBool) return std::nullopt;
  return value->text == "true";
}

std::optional<double> ClearKeys::NumberOr(std::string_view key,
                                          std::optional<double> fallback) const {
  if (!Has(key)) return is_complete_ ? fallback : std::nullopt;
  return Number(key);
}

std::optional<std::string> ClearKeys::FormatOr(std::string_view key,
                                               std::optional<std::string> fallback) const {
  if (!Has(key)) return is_complete_ ? fallback : std::nullopt;
  const ConfigNode* value = Find(key);
  return value == nullptr ? std::nullopt : FormatOfType(value->text);
}

std::optional<double> ClearKeys::ItemOr(std::string_view key, size_t index,
                                        std::optional<double> fallback) const {
  if (!Has(key)) return is_complete_ ? fallback : std::nullopt;
  const ConfigNode* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind == Kind::kList) {
    return index < value->entries.size() ? NumberIn(value->entries[index].value.text)
                                         : std::nullopt;
  }
  std::string_view text = value->text;
  for (; index > 0; --index) {
    const size_t comma = text.find(',');
    if (comma == text.npos) return std::nullopt;
    text.remove_prefix(comma + 1);
  }
  return NumberIn(text.substr(0, text.find(',')));
}

}  // namespace dlsim::sim
