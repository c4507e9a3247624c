// SPDX-License-Identifier: Apache-2.0
#include "src/trace/tensor_rules.h"

#include "dlsim/error.h"

namespace dlsim {

std::optional<uint64_t> ElementCount(std::span<const uint64_t> shape, uint64_t item_bytes) {
  bool empty = false;
  uint64_t bytes = item_bytes;
  for (const uint64_t size : shape) {
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(bytes, size, &bytes)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : bytes / item_bytes;
}

std::string ShapeText(std::span<const uint64_t> shape) {
  std::string text = "[";
  for (const uint64_t size : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(size);
  }
  return text + "]";
}

Role RoleOfName(std::string_view name) {
  if (name.ends_with(".act_grad")) return Role::kActGrad;
  if (name.ends_with(".act") || name.ends_with(".fwd")) return Role::kAct;
  return name.ends_with(".value") ? Role::kValue : Role::kGrad;
}

std::string TensorPlace(std::string_view place, std::string_view name) {
  return std::string(place) + ": tensor " + Quoted(name);
}

std::optional<int64_t> ParseDigits(std::string_view text) {
  if (text.empty() || text.size() > 18) return std::nullopt;
  int64_t number = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9') return std::nullopt;
    number = number * 10 + (digit - '0');
  }
  return number;
}

}  // namespace dlsim
