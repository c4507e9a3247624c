// SPDX-License-Identifier: Apache-2.0
#include "sim/config/shell_script.h"

#include <algorithm>
#include <utility>

#include "sim/base/word_character.h"

namespace dlsim::sim {
namespace {

constexpr std::string_view kBlanks = " \t\r";
constexpr std::string_view kEnds = ";&|\n()<>";

// What a script of aliases of aliases may expand to.
constexpr size_t kMaxValueBytes = size_t{1} << 20;

bool Contains(std::string_view set, char c) { return set.find(c) != set.npos; }

// Adds pieces to the word under construction: the first continues it, each other begins one.
void Append(const std::vector<std::string>& pieces, std::vector<std::string>& words) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i == 0) {
      words.back() += pieces[i];
    } else {
      words.push_back(pieces[i]);
    }
  }
}

std::string_view TextInQuotes(std::string_view text) {
  const bool quoted = text.size() >= 2 && text.front() == text.back() &&
                      (text.front() == '"' || text.front() == '\'');
  return quoted ? text.substr(1, text.size() - 2) : text;
}

size_t BytesOf(const std::vector<std::string>& values) {
  size_t bytes = 0;
  for (const std::string& value : values) bytes += value.size();
  return bytes;
}

}  // namespace

std::vector<std::string> SplitAtBlanks(std::string_view text) {
  std::vector<std::string> words;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    if (text.empty()) return words;
    const size_t end = std::min(text.find_first_of(" \t\r\n"), text.size());
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

char ShellScript::Peek(size_t ahead) const {
  return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
}

char ShellScript::Take() {
  const char c = Peek();
  if (at_ < text_.size()) ++at_;
  if (c == '\n') ++line_;
  return c;
}

// Blanks, line ends after a backslash, and comments.
void ShellScript::SkipBlanks() {
  while (at_ < text_.size()) {
    if (Contains(kBlanks, Peek())) {
      Take();
    } else if (AtContinuation()) {
      while (Take() != '\n') {
      }
    } else if (Peek() == '#') {
      while (at_ < text_.size() && Peek() != '\n') Take();
    } else {
      return;
    }
  }
}

bool ShellScript::AtContinuation() const {
  return Peek() == '\\' && (Peek(1) == '\n' || (Peek(1) == '\r' && Peek(2) == '\n'));
}

bool ShellScript::AtEndOfStatement() const {
  return at_ >= text_.size() || Contains(kEnds, Peek());
}

void ShellScript::TakeHereDocuments(ShellStatement& statement) {
  for (const HereDocument& document : here_documents_) {
    const size_t begin = at_;
    size_t last = at_;
    while (at_ < text_.size()) {
      const size_t stop = std::min(text_.find('\n', at_), text_.size());
      const std::string_view line = text_.substr(at_, stop - at_);
      const size_t start = std::min(line.find_first_not_of('\t'), line.size());
      at_ = std::min(stop + 1, text_.size());
      ++line_;
      if (line.substr(start) == document.end) break;
      last = at_;
    }
    const std::string_view body = text_.substr(begin, last - begin);
    statement.here_document = document.expands ? Expand(body) : std::string(body);
  }
  here_documents_.clear();
}

// The text of a here-document or a default: only variables and commands mean anything in it.
std::string ShellScript::Expand(std::string_view text) {
  constexpr int kMaxDepth = 16;
  if (depth_ == kMaxDepth) return std::string(1, kUnknownText);
  ++depth_;
  const std::string_view outer = std::exchange(text_, text);
  const size_t outer_at = std::exchange(at_, 0);
  const int outer_line = line_;
  std::vector<std::string> words = {""};
  while (at_ < text_.size()) {
    const char c = Peek();
    if (c == '$' || c == '`') {
      ReadExpansion(words, Split::kNone);
    } else if (c == '\\' && Contains("$`\\", Peek(1))) {
      Take();
      words.back() += Take();
    } else {
      words.back() += Take();
    }
  }
  --depth_;
  text_ = outer;
  at_ = outer_at;
  line_ = outer_line;
  std::string whole;
  for (const std::string& word : words) whole += word;
  return whole;
}

// Returns false where the statement goes on: after a redirection.
bool ShellScript::TakeSeparator(ShellStatement& statement) {
  const char c = Take();
  if (c == '<' && Peek() == '<' && Peek(1) != '<') {
    Take();
    if (Peek() == '-') Take();
    SkipBlanks();
    const bool quoted = Contains("'\"\\", Peek());
    here_documents_.push_back({ReadWord(Split::kNone).front(), !quoted});
    return false;
  }
  if (c == '>') {
    if (Contains(">|", Peek())) Take();
    SkipBlanks();
    if (Peek() != '&') statement.output = ReadWord(Split::kNone).front();
    return false;
  }
  if (c == '<') return false;
  if (c == '&' && Peek() == '>') return false;
  statement.ends_case_arm = c == ';' && Peek() == ';';
  after_condition_ = (c == '&' || c == '|') && Peek() == c;
  if (after_condition_ || statement.ends_case_arm) Take();
  if (c == '\n') TakeHereDocuments(statement);
  return true;
}

bool ShellScript::Next(ShellStatement& statement) {
  for (const ShellAssignment& made : statement.assignments) {
    if (BytesOf(made.values) <= kMaxValueBytes) variables_[made.name] = made.values;
  }
  statement = {};
  statement.is_conditional = after_condition_;
  while (at_ < text_.size()) {
    SkipBlanks();
    if (AtEndOfStatement()) {
      if (at_ >= text_.size()) break;
      if (TakeSeparator(statement)) break;
      continue;
    }
    if (TakeAssignment(statement)) continue;
    const int line = line_;
    for (std::string& word : ReadWord(Split::kWords)) {
      if (!word.empty()) statement.words.push_back({std::move(word), line});
    }
  }
  const auto& words = statement.words;
  if (words.size() > 1 && words[0].text == "tee" && statement.output.empty()) {
    statement.output = words[words[1].text == "-a" && words.size() > 2 ? 2 : 1].text;
  }
  return at_ < text_.size() || !words.empty() || !statement.assignments.empty();
}

// Takes NAME=value, NAME+=value and NAME=(...) before a command, also after export and the like.
bool ShellScript::TakeAssignment(ShellStatement& statement) {
  constexpr std::string_view kDeclaring[] = {"export", "local", "readonly", "declare", "-a",
                                             "-r",     "then",  "else",     "do",      "{"};
  for (const ShellWord& word : statement.words) {
    if (std::ranges::find(kDeclaring, word.text) == std::end(kDeclaring)) return false;
  }
  size_t length = 0;
  while (IsWordCharacter(Peek(length))) ++length;
  const bool adds = Peek(length) == '+';
  if (length == 0 || Peek(length + adds) != '=') return false;
  ShellAssignment made = {std::string(text_.substr(at_, length)), {}, line_};
  at_ += length + adds + 1;
  std::vector<std::string> values;
  const bool array = Peek() == '(';
  if (array) {
    ReadArray(values);
  } else {
    values = ReadWord(Split::kNone);
  }
  const bool is_set = variables_.contains(made.name);
  if (adds && is_set) made.values = variables_[made.name];
  if (array || made.values.empty()) {
    made.values.insert(made.values.end(), values.begin(), values.end());
  } else {
    made.values.back() += values.front();
  }
  statement.assignments.push_back(std::move(made));
  return true;
}

void ShellScript::ReadArray(std::vector<std::string>& values) {
  Take();
  while (at_ < text_.size()) {
    SkipBlanks();
    if (Peek() == ')') break;
    if (Contains(kEnds, Peek())) {
      Take();
      continue;
    }
    for (std::string& word : ReadWord(Split::kWords)) {
      if (!word.empty()) values.push_back(std::move(word));
    }
  }
  Take();
}

std::vector<std::string> ShellScript::ReadWord(Split split) {
  std::vector<std::string> words = {""};
  while (at_ < text_.size() && !Contains(kBlanks, Peek()) && !Contains(kEnds, Peek())) {
    const char c = Peek();
    if (c == '\\') {
      if (AtContinuation()) break;
      Take();
      words.back() += Take();
    } else if (c == '\'') {
      Take();
      while (at_ < text_.size() && Peek() != '\'') words.back() += Take();
      Take();
    } else if (c == '"') {
      ReadQuoted(words);
    } else if (c == '$' || c == '`') {
      ReadExpansion(words, split);
    } else {
      words.back() += Take();
    }
  }
  return words;
}

void ShellScript::ReadQuoted(std::vector<std::string>& words) {
  Take();
  while (at_ < text_.size() && Peek() != '"') {
    if (Peek() == '\\') {
      Take();
      const char escaped = Take();
      if (escaped != '\n') words.back() += escaped;
    } else if (Peek() == '$' || Peek() == '`') {
      ReadExpansion(words, Split::kNone);
    } else {
      words.back() += Take();
    }
  }
  Take();
}

void ShellScript::SkipNested(char open, char close) {
  size_t depth = 0;
  do {
    const char c = Take();
    if (c == open) ++depth;
    if (c == close) --depth;
  } while (depth > 0 && at_ < text_.size());
}

std::vector<std::string> ShellScript::ValueOf(const std::string& name) const {
  const auto found = variables_.find(name);
  return found == variables_.end() ? std::vector<std::string>{std::string(1, kUnknownText)}
                                   : found->second;
}

void ShellScript::Restore(const std::string& name, const std::vector<std::string>& values) {
  if (values.size() == 1 && values[0] == std::string_view(&kUnknownText, 1)) {
    variables_.erase(name);
  } else {
    variables_[name] = values;
  }
}

// Returns the value of ${NAME}, ${NAME[@]}, ${NAME:-default}; other forms are unknown.
std::vector<std::string> ShellScript::ReadBraces() {
  const size_t begin = at_ + 1;
  SkipNested('{', '}');
  const std::string_view inner = text_.substr(begin, std::max(at_, begin + 1) - 1 - begin);
  size_t length = 0;
  while (length < inner.size() && IsWordCharacter(inner[length])) ++length;
  const std::string name(inner.substr(0, length));
  const std::string_view rest = inner.substr(length);
  const std::vector<std::string> value = ValueOf(name);
  if (rest.empty() || rest == "[@]" || rest == "[*]") return value;
  const bool has_default = rest.starts_with(":-") || rest.starts_with(":=");
  if (!has_default) return {std::string(1, kUnknownText)};
  const bool is_set = variables_.contains(name) && !value.empty() && !value.front().empty();
  return is_set ? value : std::vector<std::string>{Expand(TextInQuotes(rest.substr(2)))};
}

void ShellScript::ReadExpansion(std::vector<std::string>& words, Split split) {
  const std::vector<std::string> unknown = {std::string(1, kUnknownText)};
  std::vector<std::string> value = unknown;
  if (Take() == '`') {
    while (at_ < text_.size() && Take() != '`') {
    }
  } else if (Peek() == '{') {
    value = ReadBraces();
  } else if (Peek() == '(') {
    SkipNested('(', ')');
  } else if (IsWordCharacter(Peek()) && !(Peek() >= '0' && Peek() <= '9')) {
    std::string name;
    while (IsWordCharacter(Peek())) name += Take();
    value = ValueOf(name);
  } else {
    Take();  // $1, $@ and the like
  }
  if (split == Split::kWords) {
    std::vector<std::string> pieces;
    for (const std::string& element : value) {
      for (std::string& piece : SplitAtBlanks(element)) pieces.push_back(std::move(piece));
    }
    value = std::move(pieces);
  }
  Append(value, words);
}

}  // namespace dlsim::sim
