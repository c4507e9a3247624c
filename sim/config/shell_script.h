// SPDX-License-Identifier: Apache-2.0
// The statements of a shell script, as far as they can be known without running it: variables,
// arrays and quotes are expanded, nothing is executed.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace dlsim::sim {

// Stands in a text for what only running the script would tell: $1, $(command), arithmetic, a
// variable that the script does not set.
inline constexpr char kUnknownText = '\x01';

struct ShellWord {
  std::string text;
  int line = 0;
};

struct ShellAssignment {
  std::string name;
  std::vector<std::string> values;  // one, or the elements of an array
  int line = 0;
};

struct ShellStatement {
  std::vector<ShellAssignment> assignments;
  std::vector<ShellWord> words;
  std::string output;           // the file that it writes: > NAME, or tee NAME
  std::string here_document;    // its input after <<, expanded
  bool is_conditional = false;  // follows && or ||
  bool ends_case_arm = false;   // ;;
};

class ShellScript {
 public:
  explicit ShellScript(std::string_view text) : text_(text) {}

  // Returns false at the end. Assignments hold from the next statement on.
  bool Next(ShellStatement& statement);

  // Returns the value that a variable has before the statement that was read last; kUnknownText if
  // nothing sets it.
  std::vector<std::string> ValueOf(const std::string& name) const;

  // Gives a variable the value that ValueOf returned before.
  void Restore(const std::string& name, const std::vector<std::string>& values);

  // Makes a variable's value unknown.
  void Forget(const std::string& name) { variables_[name] = {std::string(1, kUnknownText)}; }

 private:
  enum class Split { kWords, kNone };

  void SkipBlanks();
  bool AtContinuation() const;  // at a backslash before the end of a line
  bool AtEndOfStatement() const;
  bool TakeSeparator(ShellStatement& statement);
  void TakeHereDocuments(ShellStatement& statement);
  std::string Expand(std::string_view text);
  bool TakeAssignment(ShellStatement& statement);
  void ReadArray(std::vector<std::string>& values);
  std::vector<std::string> ReadWord(Split split);
  void ReadQuoted(std::vector<std::string>& words);
  void ReadExpansion(std::vector<std::string>& words, Split split);
  std::vector<std::string> ReadBraces();
  void SkipNested(char open, char close);
  char Peek(size_t ahead = 0) const;
  char Take();

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  int depth_ = 0;  // of texts inside of texts
  bool after_condition_ = false;
  struct HereDocument {
    std::string end;
    bool expands = true;  // false for <<'END'
  };
  std::vector<HereDocument> here_documents_;
  std::map<std::string, std::vector<std::string>> variables_;
};

// Splits at blanks and line ends.
std::vector<std::string> SplitAtBlanks(std::string_view text);

}  // namespace dlsim::sim
