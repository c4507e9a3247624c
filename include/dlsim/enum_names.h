// SPDX-License-Identifier: Apache-2.0
// The names that options, files and results share for the values of an enum. They are listed once,
// next to the enum, in the order in which messages list them:
//   constexpr auto EnumNames(Overflow) {
//     return std::to_array<EnumName<Overflow>>(
//         {{Overflow::kInfinity, "inf"}, {Overflow::kSaturate, "saturate"}});
//   }
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

namespace dlsim {

template <class E>
struct EnumName {
  E value;
  std::string_view name;
};

template <class E>
concept NamedEnum = std::is_enum_v<E> && requires {
  EnumNames(E{});
};

// Returns the name of a value.
template <NamedEnum E>
constexpr std::string_view NameOf(E value) {
  for (const EnumName<E>& row : EnumNames(E{})) {
    if (row.value == value) return row.name;
  }
  return "";
}

// Returns the value of a name; nothing for an unknown one.
template <NamedEnum E>
constexpr std::optional<E> ValueNamed(std::string_view name) {
  for (const EnumName<E>& row : EnumNames(E{})) {
    if (row.name == name) return row.value;
  }
  return std::nullopt;
}

// Returns all names.
template <NamedEnum E>
std::vector<std::string_view> NamesOf() {
  std::vector<std::string_view> names;
  for (const EnumName<E>& row : EnumNames(E{})) names.push_back(row.name);
  return names;
}

}  // namespace dlsim
