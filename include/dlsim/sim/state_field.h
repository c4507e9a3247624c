// SPDX-License-Identifier: Apache-2.0
// The fields of a policy's state: named once, for results, checkpoints and their restoring.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>

namespace dlsim::sim {

// A field of a policy's State, under the name that the original's checkpoint or counter has.
template <class State, class T>
struct StateField {
  const char* name;
  T State::*member;
  bool described = true;  // false: only for checkpoints
};
// Clang 16 does not deduce the arguments of an aggregate by itself.
template <class State, class T>
StateField(const char*, T State::*, bool = true) -> StateField<State, T>;

// How a field's value shows, and how it is set from a number; overload both for other types.
inline bool SetFromNumber(double value, double& field) {
  field = value;
  return true;
}
inline bool SetFromNumber(double value, float& field) {
  field = static_cast<float>(value);
  return true;
}
template <std::integral T>
bool SetFromNumber(double value, T& field) {
  // Counters of steps: far from where sums of them could overflow.
  constexpr double kLimit = 0x1p31 - 1;
  if (value != std::trunc(value) || std::fabs(value) > kLimit) return false;
  field = static_cast<T>(value);
  return true;
}
template <class T>
auto FieldValue(const T& field) {
  if constexpr (std::is_integral_v<T>) {
    return int64_t{field};
  } else {
    return static_cast<double>(field);
  }
}

// Appends the bytes of a field's value; a text ends in a blank.
inline void AppendBytes(const std::string& value, std::string& bytes) { bytes += value + ' '; }
template <class T>
requires std::is_arithmetic_v<T>
void AppendBytes(const T& value, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
template <class... T>
void AppendBytes(const std::variant<T...>& value, std::string& bytes) {
  std::visit([&](const auto& held) { AppendBytes(held, bytes); }, value);
}

}  // namespace dlsim::sim
