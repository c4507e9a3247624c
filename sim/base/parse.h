// SPDX-License-Identifier: Apache-2.0
// Values as users write them: numbers, whose locale never matters, names, with "did you mean", and
// devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/error.h"

namespace dlsim::sim {

// Returns the value of a whole text such as "65536", "-3", "2e15", "0x1.8p+3" or "2^-14". Throws
// Error (exit code 2) naming `place` for anything else and for what binary64 cannot hold; "inf"
// and "nan" are no numbers.
double ParseNumber(std::string_view text, std::string_view place);

// Like ParseNumber, for integers: "2^10" and "2e3" are integers, "0.5" is not. Plain decimals are
// exact over the whole range of int64_t.
int64_t ParseInteger(std::string_view text, std::string_view place);

// Returns the value of "true", "false", "True", "False", "1" or "0"; throws Error (exit code 2).
bool ParseBool(std::string_view text, std::string_view place);

// Returns the candidate that a common word stands for, such as rne for "nearest", else the
// NearestName; empty if none is near.
std::string Suggest(std::string_view name, std::span<const std::string_view> candidates);

// Returns `problem`, such as "unknown name", and " (did you mean 'b'?)" after it where Suggest
// finds a name among `known` and `aliases`.
std::string WithSuggestion(std::string_view problem, std::string_view name,
                           std::span<const std::string_view> known,
                           std::span<const std::string_view> aliases = {});

// Returns "one of a, b, c".
std::string OneOf(std::span<const std::string_view> known);

// Returns the error of a name that is not among the keys, which are sorted for it: `problem` is
// such as "unknown parameter 'x'".
Error UnknownKey(std::string_view place, const std::string& problem, std::string_view name,
                 std::vector<std::string> keys);

// Returns the position of `text` among `names`; throws UsageError that lists them.
size_t ParseChoice(const std::string& option, const std::string& text,
                   const std::vector<std::string_view>& names);

// Returns the value of an enum that has this name, or this one of its EnumAliases, if it has any;
// throws UsageError that lists the names.
template <NamedEnum E>
E ParseNamed(const std::string& option, const std::string& text) {
  if constexpr (requires { EnumAliases(E{}); }) {
    for (const EnumName<E>& alias : EnumAliases(E{})) {
      if (alias.name == text) return alias.value;
    }
  }
  return EnumNames(E{})[ParseChoice(option, text, NamesOf<E>())].value;
}

struct DeviceChoice {
  enum class Kind : uint8_t { kAuto, kCpu, kCuda };

  Kind kind = Kind::kAuto;
  int index = 0;  // of kCuda
};

// Returns what "auto", "cpu", "cuda" or "cuda:N" means; throws UsageError for other texts.
DeviceChoice ParseDevice(const std::string& text);

}  // namespace dlsim::sim
