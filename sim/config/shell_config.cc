// SPDX-License-Identifier: Apache-2.0
// Command lines and shell scripts that start a training: their options become a table, and the
// overrides of one that starts verl the tables of its configuration.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "dlsim/error.h"
#include "sim/config/arguments.h"
#include "sim/config/config_file.h"
#include "sim/config/hydra_overrides.h"
#include "sim/config/shell_branches.h"
#include "sim/config/shell_script.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

// What a simulation depends on: where only running the script would tell it, it is refused.
constexpr std::array<std::string_view, 7> kDecisive = {
    "fp16", "bf16", "loss-scale", "loss_scale", "scale-window", "scale_window", "hysteresis"};

// Options without a value, after which a file may follow.
constexpr std::array<std::string_view, 7> kSwitches = {"--fp16",
                                                       "--bf16",
                                                       "--amp",
                                                       "--deepspeed",
                                                       "--memory-efficient-fp16",
                                                       "--memory-efficient-bf16",
                                                       "--pure_bf16"};

bool IsDecisive(std::string_view text) {
  return std::ranges::any_of(kDecisive,
                             [&](std::string_view part) { return text.find(part) != text.npos; });
}

// True for what says whether DeepSpeed runs, and by which file.
bool NamesDeepSpeed(std::string_view word) {
  const std::string_view name = word.substr(0, word.find('='));
  return name == "--deepspeed" || name == "--deepspeed_config" || name == "--deepspeed-config";
}

// Options that ClearKeys reads, on which no scale depends, and those from which the window of
// fairseq follows: in a branch they are unclear.
constexpr std::array<std::string_view, 13> kOfUpdates = {"--adam",
                                                         "-dtype",
                                                         "precision-aware",
                                                         "grad-reduce",
                                                         "accumulate-allreduce",
                                                         "--optim",
                                                         "--learning_",
                                                         "--lr",
                                                         "--weight-decay",
                                                         "--weight_decay",
                                                         "adam-stats",
                                                         "world-size",
                                                         "model-parallel-size"};

bool IsOfUpdates(std::string_view name) {
  return std::ranges::any_of(kOfUpdates,
                             [&](std::string_view part) { return name.find(part) != name.npos; });
}

bool IsTruth(std::string_view text) {
  constexpr std::array<std::string_view, 6> kTruths = {"true",  "True",  "TRUE",
                                                       "false", "False", "FALSE"};
  return std::ranges::find(kTruths, text) != kTruths.end();
}

bool IsNumber(const std::string& text) {
  if (text.empty() || text.find_first_not_of("0123456789.eE+-") != text.npos) return false;
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return *end == '\0';
}

// The options of a variable's value that decide, each with what follows it.
std::string DecisiveOptions(const std::vector<std::string>& values) {
  std::string found;
  bool follows = false;
  for (const std::string& value : values) {
    for (const std::string& word : SplitAtBlanks(value)) {
      const bool decides = IsDecisive(word) || NamesDeepSpeed(word);
      if (decides || (follows && !word.starts_with("--"))) found += word + "\n";
      follows = decides;
    }
  }
  return found;
}

class ScriptOptions {
 public:
  explicit ScriptOptions(std::string_view file)
      : file_(file), builder_(file, DuplicateKeys::kKeep) {
    builder_.Open(Kind::kTable, 1);
  }

  void Read(std::string_view text) {
    ShellScript script(text);
    ShellStatement statement;
    while (script.Next(statement)) {
      if (const auto choice = branches_.Follow(statement, script)) {
        Refuse(choice->line, choice->name);
      }
      if (!statement.output.empty() && !statement.here_document.empty()) {
        written_[statement.output] = statement.here_document;
      }
      ReadOptions(statement);
    }
  }

  ConfigNode Take() {
    if (IsOfVerl()) {
      for (const ConfigEntry& entry : overrides_.entries) {
        builder_.Key(entry.key);
        builder_.Copy(entry.value, entry.value.line);
      }
    }
    if (!is_complete_) {
      builder_.Key(std::string(1, kUnknownText));
      builder_.Scalar(Kind::kNull, "", 0);
    }
    builder_.Close();
    return builder_.Take();
  }

 private:
  [[noreturn]] void Refuse(int line, std::string_view option) const {
    throw UsageError(ConfigPlace(file_, line), Quoted(option) + " depends on how the script is run",
                     "a script without that choice, or the command line itself");
  }

  // A word with blanks is a command for eval or bash -c.
  static std::vector<ShellWord> Flatten(const ShellStatement& statement) {
    std::vector<ShellWord> words;
    for (const ShellWord& word : statement.words) {
      const bool command = word.text.find(' ') != word.text.npos &&
                           (word.text.starts_with("--") || word.text.find(" --") != word.text.npos);
      if (!command) {
        words.push_back(word);
        continue;
      }
      for (const std::string& part : SplitAtBlanks(word.text)) words.push_back({part, word.line});
    }
    return words;
  }

  // "if [ $OPTIONS = ... ]", whose words are no options.
  static bool IsCondition(const ShellStatement& statement) {
    constexpr std::array<std::string_view, 5> kKeywords = {"if", "elif", "while", "until", "!"};
    for (const ShellWord& word : statement.words) {
      if (std::ranges::find(kKeywords, word.text) != kKeywords.end()) continue;
      return word.text == "[" || word.text == "[[" || word.text == "test";
    }
    return false;
  }

  // "--fp16 )" of a case: no command begins with an option.
  bool IsPattern(const ShellStatement& statement) const {
    return branches_.IsOpen() && std::ranges::all_of(statement.words, [](const ShellWord& word) {
             return word.text.starts_with("-");
           });
  }

  // True for an option whose name does not say that it is a switch.
  static bool MayTakeValue(std::string_view name) {
    constexpr std::array<std::string_view, 10> kStarts = {
        "--use",      "--no-",    "--enable", "--disable", "--overlap",
        "--sequence", "--swiglu", "--untie",  "--apply-",  "--accumulate"};
    const auto begins = [&](std::string_view start) { return name.starts_with(start); };
    return name.starts_with("--") && std::ranges::count(kSwitches, name) == 0 &&
           std::ranges::none_of(kStarts, begins);
  }

  static bool HasOption(const std::vector<ShellWord>& words) {
    return std::ranges::any_of(words,
                               [](const ShellWord& word) { return word.text.starts_with("--"); });
  }

  void ReadOptions(const ShellStatement& statement) {
    if (IsCondition(statement) || IsPattern(statement)) return;
    const std::vector<ShellWord> words = Flatten(statement);
    for (size_t i = 0; i < words.size(); ++i) {
      const std::string& word = words[i].text;
      if (const auto found = ParseOverride(word)) Override(*found, words[i].line);
      if (IsVerlProgram(word)) Override({"verl.program", word}, words[i].line);
      if (!word.starts_with("--") || word.size() == 2) {
        const bool unknown = word.find(kUnknownText) != word.npos;
        const bool is_value = i > 0 && MayTakeValue(words[i - 1].text);
        if (unknown && !is_value && HasOption(words)) is_complete_ = false;
        continue;
      }
      const size_t equals = std::min(word.find('='), word.size());
      const std::string name = word.substr(0, equals);
      std::string value = word.substr(std::min(equals + 1, word.size()));
      const bool has_next = i + 1 < words.size() && !words[i + 1].text.starts_with("--");
      if (equals == word.size() && has_next && TakesValue(name, words[i + 1].text)) {
        value = words[i + 1].text;
      }
      Add(name, value, words[i].line);
    }
  }

  void Override(const HydraOverride& found, int line) {
    const auto depth = static_cast<size_t>(std::ranges::count(found.path, '.')) + 1;
    if (depth > ConfigTreeBuilder::kMaxDepth) return;  // Hydra's have some six
    builder_.Count({.nodes = depth, .bytes = found.path.size() + found.value.size()}, line);
    const bool known = found.value.find(kUnknownText) == std::string::npos;
    const bool clear = known && !branches_.IsOpen();
    if (!clear && DecidesVerl(found.path)) undecided_.emplace(line, found.path);
    SetPath(overrides_, found.path, ValueNode(known ? found.value : "", line));
  }

  // Others' overrides change a file that is not here.
  bool IsOfVerl() const {
    constexpr std::array<std::string_view, 3> kMarks = {"actor_rollout_ref.actor",
                                                        "model.partial_pretrain", "verl.program"};
    if (!HasMark(overrides_, kMarks)) return false;
    if (!undecided_.empty()) Refuse(undecided_.begin()->first, undecided_.begin()->second);
    return true;
  }

  static ConfigNode ValueNode(const std::string& value, int line) {
    if (!IsTruth(value)) return {IsNumber(value) ? Kind::kNumber : Kind::kText, value, line, {}};
    const bool off = value.starts_with('f') || value.starts_with('F');
    return {Kind::kBool, off ? "false" : "true", line, {}};
  }

  static bool TakesValue(const std::string& name, const std::string& next) {
    // transformers' string_to_bool; it refuses other words.
    constexpr std::array<std::string_view, 10> kWords = {"yes", "no", "y", "n",  "t",
                                                         "f",   "0",  "1", "on", "off"};
    if (IsTruth(next) || std::ranges::find(kWords, next) != kWords.end()) return true;
    if (name == "--deepspeed") return !next.ends_with(".py");
    return std::ranges::find(kSwitches, name) == kSwitches.end();
  }

  void Add(const std::string& name, const std::string& value, int line) {
    const bool known = value.find(kUnknownText) == value.npos;
    if (IsDecisive(name) && (branches_.IsOpen() || !known)) {
      if (!known || !branches_.TakeOption(name + "=" + value, {name, line})) Refuse(line, name);
    }
    if (!known && name.find("accumulation") != name.npos) return;  // changes no scale
    const auto same = [&](const ConfigEntry& entry) {
      return entry.key == name && (entry.value.text == value || entry.value.kind == Kind::kBool);
    };
    if (std::ranges::any_of(builder_.open_node().entries, same)) return;
    if (copied_.contains({name, value})) return;
    builder_.Key(name);
    if (AddWrittenFile(name, value, line)) return;
    const bool unclear = branches_.IsOpen() && IsOfUpdates(name);
    const std::string text = unclear ? std::string(1, kUnknownText) : TruthOf(name, value);
    const ConfigNode node = ValueNode(text.empty() ? "true" : text, line);
    builder_.Scalar(node.kind, node.text, line);
  }

  // A switch's yes, y, t, 1 and no, n, f, 0 as true and false.
  static std::string TruthOf(const std::string& name, const std::string& value) {
    const bool is_switch =
        std::ranges::find(kSwitches, name) != kSwitches.end() || name.ends_with("16_full_eval");
    if (!is_switch || value.size() > 3) return value;
    if (value == "yes" || value == "y" || value == "t" || value == "1") return "true";
    if (value == "no" || value == "n" || value == "f" || value == "0") return "false";
    return value;
  }

  // A DeepSpeed file that the script itself writes in a here-document.
  bool AddWrittenFile(const std::string& name, const std::string& value, int line) {
    const auto found = written_.find(value);
    if (found == written_.end() || !name.starts_with("--deepspeed")) return false;
    try {
      builder_.Copy(ParseJsonConfig(file_, found->second), line);
      copied_.emplace(name, value);
      return true;
    } catch (const Error&) {
      return false;  // parts that only running the script would tell
    }
  }

  std::string_view file_;
  std::map<std::string, std::string> written_;            // here-documents by the file they go to
  std::set<std::pair<std::string, std::string>> copied_;  // options whose value was such a file
  ConfigTreeBuilder builder_;
  ConfigNode overrides_ = TableNode({});
  bool is_complete_ = true;               // false if a word may be options that only a run tells
  std::map<int, std::string> undecided_;  // decisive overrides that the script chooses, by line
  ShellBranches branches_{DecisiveOptions};
};

}  // namespace

ConfigNode ParseShell(std::string_view file, std::string_view text) {
  ScriptOptions options(file);
  options.Read(text);
  ConfigNode root = options.Take();
  if (root.entries.empty()) {
    throw UsageError(Printable(file), "no options of a training program", "--NAME VALUE ...");
  }
  return root;
}

}  // namespace dlsim::sim
