// SPDX-License-Identifier: Apache-2.0
// What a person did wrong where a YAML parser only says that it is lost.
#pragma once

#include <string>
#include <string_view>

namespace dlsim::sim {

struct YamlMistake {
  int line = 0;  // from 1
  std::string problem;
};

// Returns the likely mistake behind the parser's `message` on `line`, which is often the line after
// it: a missing colon or blank, indentation, a tab, a merge conflict, a value that needs quotes.
// Without one that it knows, the message itself.
YamlMistake FindYamlMistake(std::string_view text, int line, std::string_view message);

// True if the scalar that begins at this line and column, both from 0, perhaps with an anchor or a
// tag, has no quotes or closes them.
bool IsQuoteClosed(std::string_view text, int line, int column);

}  // namespace dlsim::sim
