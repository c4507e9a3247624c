// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the known name nearest to what the user wrote.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/error.h"

namespace dlsim::sim {

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

}  // namespace dlsim::sim
