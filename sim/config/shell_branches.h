// SPDX-License-Identifier: Apache-2.0
// The branches of a shell script: what they choose is known only if all of them choose the same.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/config/shell_script.h"

namespace dlsim::sim {

// A choice that only running the script tells.
struct ShellChoice {
  std::string name;  // of an option or a variable
  int line = 0;
};

class ShellBranches {
 public:
  using Values = std::vector<std::string>;

  // `decisive` picks the options of a value on which a simulation depends, "" if there are none.
  explicit ShellBranches(std::function<std::string(const Values&)> decisive)
      : decisive_(std::move(decisive)) {}

  // Opens and closes branches at the statement's keyword, then takes its assignments. A value that
  // is a choice, and decides nothing by itself, becomes unknown. Returns a decisive choice.
  std::optional<ShellChoice> Follow(ShellStatement& statement, ShellScript& script);

  // Takes an option that decides, and that stands in a branch; returns false if it is a choice.
  bool TakeOption(const std::string& option, const ShellChoice& choice);

  bool IsOpen() const { return depth_ > 0; }

 private:
  struct Arm {
    std::string options;                     // those that decide, in order
    std::map<std::string, Values> assigned;  // the variables that it sets
  };

  std::optional<ShellChoice> Keyword(const std::string& word, ShellScript& script);
  std::optional<ShellChoice> Close(ShellScript& script);
  std::optional<ShellChoice> Assign(ShellAssignment& made, const ShellScript& script);

  std::function<std::string(const Values&)> decisive_;
  std::vector<Arm> arms_;                 // of the outermost `if`
  std::map<std::string, Values> before_;  // variables that an arm sets, before it
  std::map<std::string, int> lines_;      // where the first arm does so
  std::optional<ShellChoice> first_option_;
  bool has_else_ = false;
  int depth_ = 0;
};

}  // namespace dlsim::sim
