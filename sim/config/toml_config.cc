// SPDX-License-Identifier: Apache-2.0
// TOML by toml++, which refuses keys given twice by itself.
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>

#include "dlsim/error.h"
#include "sim/config/config_file.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

// Returns the position after the string or comment that begins at `at`, or after one character.
size_t SkipToken(std::string_view text, size_t at) {
  if (text[at] == '#') return std::min(text.find('\n', at), text.size());
  if (text[at] != '"' && text[at] != '\'') return at + 1;
  const bool escapes = text[at] == '"';
  const std::string triple(3, text[at]);
  const std::string_view quote(triple.data(), text.substr(at).starts_with(triple) ? 3 : 1);
  for (at += quote.size(); at < text.size(); ++at) {
    if (text.substr(at).starts_with(quote)) {
      // A text in triple quotes may end in up to two quotes of its own.
      const size_t end = text.find_first_not_of(quote.front(), at);
      const size_t longest = at + (quote.size() == 3 ? 5 : 1);
      return std::min({end, longest, text.size()});
    }
    if (escapes && text[at] == '\\') ++at;
    if (quote.size() == 1 && at < text.size() && text[at] == '\n') return at;
  }
  return text.size();
}

// toml++ 3.3 makes a table for each part of a dotted key, without a limit, and destroys them
// recursively; it reads 256 nested lists and tables recursively, which takes more than small
// stacks.
void LimitNesting(std::string_view file, std::string_view text) {
  size_t dots = 0, open = 0;
  int line = 1;
  for (size_t at = 0; at < text.size();) {
    const size_t next = SkipToken(text, at);
    line += static_cast<int>(std::count(text.begin() + static_cast<std::ptrdiff_t>(at),
                                        text.begin() + static_cast<std::ptrdiff_t>(next), '\n'));
    if (std::string_view("=,{}[]\n").find(text[at]) != std::string_view::npos) dots = 0;
    if (text[at] == '.') ++dots;
    if (text[at] == '[' || text[at] == '{') ++open;
    if ((text[at] == ']' || text[at] == '}') && open > 0) --open;
    if (std::max(dots + 1, open) > ConfigTreeBuilder::kMaxDepth) {
      throw UsageError(ConfigPlace(file, line), "nested too deeply",
                       "at most " + std::to_string(ConfigTreeBuilder::kMaxDepth) + " levels");
    }
    at = next;
  }
}

// Adds the parts of a table or a list.
void AddNode(const toml::node& node, ConfigTreeBuilder& builder) {
  const int line = static_cast<int>(node.source().begin.line);
  if (const toml::table* table = node.as_table()) {
    builder.Open(Kind::kTable, line);
    for (const auto& [key, value] : *table) {
      builder.Key(std::string(key.str()));
      AddNode(value, builder);
    }
    builder.Close();
  } else if (const toml::array* array = node.as_array()) {
    builder.Open(Kind::kList, line);
    for (const toml::node& value : *array) AddNode(value, builder);
    builder.Close();
  } else if (const auto* integer = node.as_integer()) {
    builder.Scalar(Kind::kNumber, std::to_string(integer->get()), line);
  } else if (const auto* number = node.as_floating_point()) {
    builder.Scalar(Kind::kNumber, fmt::format("{}", number->get()), line);
  } else if (const auto* truth = node.as_boolean()) {
    builder.Scalar(Kind::kBool, truth->get() ? "true" : "false", line);
  } else if (const auto* text = node.as_string()) {
    builder.Scalar(Kind::kText, text->get(), line);
  } else {
    builder.Scalar(Kind::kText, "a date or time", line);
  }
}

}  // namespace

ConfigNode ParseToml(std::string_view file, std::string_view text) {
  LimitNesting(file, text);
  ConfigTreeBuilder builder(file, DuplicateKeys::kRefuse);
  try {
    AddNode(toml::parse(text), builder);
  } catch (const toml::parse_error& error) {
    throw UsageError(ConfigPlace(file, static_cast<int>(error.source().begin.line)),
                     "bad TOML: " + Printable(error.description()));
  }
  return builder.Take();
}

}  // namespace dlsim::sim
