// SPDX-License-Identifier: Apache-2.0
#include "sim/config/shell_branches.h"

#include <algorithm>

namespace dlsim::sim {

std::optional<ShellChoice> ShellBranches::Follow(ShellStatement& statement, ShellScript& script) {
  std::optional<ShellChoice> choice;
  if (!statement.words.empty()) choice = Keyword(statement.words.front().text, script);
  const bool is_conditional = statement.is_conditional && statement.words.empty();
  if (depth_ == 0 && !is_conditional) return choice;
  for (ShellAssignment& made : statement.assignments) {
    if (!choice) choice = Assign(made, script);
  }
  return choice;
}

bool ShellBranches::TakeOption(const std::string& option, const ShellChoice& choice) {
  if (arms_.empty() || depth_ > 1) return false;
  if (!first_option_) first_option_ = choice;
  arms_.back().options += option + "\n";
  return true;
}

std::optional<ShellChoice> ShellBranches::Keyword(const std::string& word, ShellScript& script) {
  if (word == "if" && depth_ == 0) {
    arms_.assign(1, {});
    before_.clear();
    lines_.clear();
    first_option_.reset();
    has_else_ = false;
  }
  if (depth_ == 1 && !arms_.empty() && (word == "elif" || word == "else")) {
    arms_.emplace_back();
    has_else_ = word == "else";
    for (const auto& [name, values] : before_) script.Restore(name, values);
  }
  if (word == "if" || word == "case") ++depth_;
  if ((word == "fi" || word == "esac") && depth_ > 0 && --depth_ == 0) return Close(script);
  return std::nullopt;
}

// The arms agree if all of them have the same decisive options, in the same order.
std::optional<ShellChoice> ShellBranches::Close(ShellScript& script) {
  std::optional<ShellChoice> choice;
  const bool agree = std::ranges::all_of(
      arms_, [&](const Arm& arm) { return arm.options == arms_.front().options; });
  if (first_option_ && !(agree && has_else_)) choice = first_option_;
  for (const auto& [name, before] : before_) {
    std::vector<Values> left;
    for (const Arm& arm : arms_) {
      const auto found = arm.assigned.find(name);
      left.push_back(found == arm.assigned.end() ? before : found->second);
    }
    if (!has_else_) left.push_back(before);
    const auto same = [&](const Values& values) { return values == left.front(); };
    const auto decides_same = [&](const Values& values) {
      return decisive_(values) == decisive_(left.front());
    };
    if (std::ranges::all_of(left, same)) continue;
    if (!std::ranges::all_of(left, decides_same)) {
      if (!choice) choice = ShellChoice{name, lines_.at(name)};
    } else if (decisive_(left.front()).empty()) {
      script.Forget(name);
    }
  }
  arms_.clear();
  return choice;
}

std::optional<ShellChoice> ShellBranches::Assign(ShellAssignment& made, const ShellScript& script) {
  const Values before = script.ValueOf(made.name);
  if (depth_ == 1 && !arms_.empty()) {
    before_.emplace(made.name, before);
    lines_.emplace(made.name, made.line);
    arms_.back().assigned[made.name] = made.values;
    return std::nullopt;
  }
  if (decisive_(before) != decisive_(made.values)) return ShellChoice{made.name, made.line};
  const bool is_choice = before != made.values && decisive_(before).empty();
  if (is_choice) made.values = {std::string(1, kUnknownText)};
  return std::nullopt;
}

}  // namespace dlsim::sim
