// SPDX-License-Identifier: Apache-2.0
#include "sim/config/yaml_mistakes.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <vector>

#include "dlsim/error.h"

namespace dlsim::sim {
namespace {

struct YamlLine {
  int number = 0;
  size_t indent = 0;
  bool has_tab = false;   // in the indentation
  std::string_view text;  // without indentation, blanks at the end and comment
};

// The lines that hold something, up to `last`.
std::vector<YamlLine> SplitLines(std::string_view text, int last) {
  std::vector<YamlLine> lines;
  for (int number = 1; number <= last && !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (const size_t comment = line.find(" #"); comment != line.npos)
      line = line.substr(0, comment);
    const size_t indent = std::min(line.find_first_not_of(" \t\r"), line.size());
    const bool has_tab = line.substr(0, indent).find('\t') != line.npos;
    line.remove_prefix(indent);
    line = line.substr(0, line.find_last_not_of(" \t\r") + 1);
    if (!line.empty() && line.front() != '#') lines.push_back({number, indent, has_tab, line});
  }
  return lines;
}

bool IsKeyLetter(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
         (letter >= '0' && letter <= '9') || letter == '_' || letter == '.' || letter == '-';
}

// The name at the start of a line.
std::string_view FirstWord(std::string_view text) {
  size_t length = 0;
  while (length < text.size() && IsKeyLetter(text[length])) ++length;
  return text.substr(0, length);
}

// Marks of git, which stand at the start of a line.
std::optional<YamlMistake> FindMergeConflict(std::string_view text) {
  for (const YamlLine& line :
       SplitLines(text, static_cast<int>(std::ranges::count(text, '\n')) + 1)) {
    const bool mark = line.text.starts_with("<<<<<<<") || line.text.starts_with(">>>>>>>") ||
                      line.text == "=======";
    if (mark && line.indent == 0) {
      return YamlMistake{line.number, "a merge conflict that was not resolved"};
    }
  }
  return std::nullopt;
}

std::optional<YamlMistake> FindMissingMark(const YamlLine& line) {
  const std::string_view text = line.text;
  const std::string_view word = FirstWord(text);
  const std::string_view rest = text.substr(word.size());
  if (text.size() > 1 && text[0] == '-' && text[1] != ' ' && text[1] != '-') {
    return YamlMistake{line.number, "no blank after '-'"};
  }
  if (word.empty() || text[0] == '-') return std::nullopt;
  const std::string name = Quoted(word);
  if (rest.starts_with(" =")) return YamlMistake{line.number, "'=' instead of ':' after " + name};
  if (rest.empty() || (rest.starts_with(' ') && text.find(": ") == text.npos)) {
    return YamlMistake{line.number, "no ':' after " + name};
  }
  if (rest.size() > 1 && rest[0] == ':' && rest[1] != ' ') {
    return YamlMistake{line.number, "no blank after ':' of " + name};
  }
  return std::nullopt;
}

// The value in `key: value`, if there is one on the line.
std::string_view ValueOf(std::string_view text) {
  const size_t colon = text.find(": ");
  if (colon == text.npos) return {};
  text.remove_prefix(colon + 2);
  return text.substr(std::min(text.find_first_not_of(' '), text.size()));
}

std::optional<YamlMistake> FindBadValue(const YamlLine& line) {
  const std::string_view value = ValueOf(line.text);
  if (value.empty()) return std::nullopt;
  if (value[0] == '@' || value[0] == '`' || value[0] == '%') {
    return YamlMistake{line.number,
                       "a value that begins with '" + std::string(1, value[0]) + "' needs quotes"};
  }
  const bool plain = std::string_view("\"'{[|>&*!").find(value[0]) == value.npos;
  if (plain && value.find(": ") != value.npos) {
    return YamlMistake{line.number, "a value with ': ' needs quotes"};
  }
  return std::nullopt;
}

// `lines` ends with the line in question.
std::optional<YamlMistake> FindBadIndent(const std::vector<YamlLine>& lines) {
  if (lines.size() < 2) return std::nullopt;
  const YamlLine& line = lines.back();
  const YamlLine& previous = lines[lines.size() - 2];
  if (line.indent > previous.indent && !ValueOf(previous.text).empty()) {
    return YamlMistake{line.number, "indented deeper than line " + std::to_string(previous.number) +
                                        ", which has a value"};
  }
  std::set<size_t> indents;
  for (size_t i = 0; i + 1 < lines.size(); ++i) {
    indents.insert(lines[i].indent);
    if (lines[i].text.starts_with("- ")) indents.insert(lines[i].indent + 2);
  }
  if (line.indent > previous.indent || indents.contains(line.indent)) return std::nullopt;
  return YamlMistake{line.number, "an indentation of " + std::to_string(line.indent) +
                                      ", which no line above has"};
}

}  // namespace

YamlMistake FindYamlMistake(std::string_view text, int line, std::string_view message) {
  if (const auto conflict = FindMergeConflict(text)) return *conflict;
  const std::vector<YamlLine> lines = SplitLines(text, line);
  if (!lines.empty() && lines.back().has_tab) {
    return {lines.back().number, "a tab in the indentation, which takes blanks only"};
  }
  if (message.find("flow") == message.npos && !lines.empty() && lines.back().number == line) {
    // The parser misses a colon only on the line after it.
    if (lines.size() > 1) {
      if (const auto mistake = FindMissingMark(lines[lines.size() - 2])) return *mistake;
    }
    if (const auto mistake = FindMissingMark(lines.back())) return *mistake;
    if (const auto mistake = FindBadValue(lines.back())) return *mistake;
    if (const auto mistake = FindBadIndent(lines)) return *mistake;
  }
  return {line, Printable(message)};
}

bool IsQuoteClosed(std::string_view text, int line, int column) {
  for (; line > 0; --line) text.remove_prefix(std::min(text.find('\n') + 1, text.size()));
  text.remove_prefix(std::min(static_cast<size_t>(column), text.size()));
  while (text.starts_with('&') || text.starts_with('!')) {
    text.remove_prefix(std::min(text.find_first_of(" \t\r\n"), text.size()));
    text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  }
  const bool has_quotes = text.starts_with('"') || text.starts_with('\'');
  if (!has_quotes) return true;  // a block of lines
  const char quote = text.front();
  for (size_t at = 1; at < text.size(); ++at) {
    if (quote == '"' && text[at] == '\\') {
      ++at;
    } else if (text[at] == quote) {
      const bool doubled = quote == '\'' && at + 1 < text.size() && text[at + 1] == quote;
      if (!doubled) return true;
      ++at;
    }
  }
  return false;
}

}  // namespace dlsim::sim
