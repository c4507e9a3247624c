// SPDX-License-Identifier: Apache-2.0
// YAML by the events of yaml-cpp, resolved as PyYAML does (YAML 1.1, with merge keys), but for
// numbers such as 1e-3, which PyYAML takes for text and users mean as numbers.
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <vector>

#include "dlsim/error.h"
#include "sim/config/config_file.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Removes leading digits and returns how many.
size_t TakeDigits(std::string_view& text) {
  size_t count = 0;
  while (count < text.size() && IsDigit(text[count])) ++count;
  text.remove_prefix(count);
  return count;
}

// True for a decimal number without a leading zero, which YAML 1.1 reads as octal.
bool IsDecimal(std::string_view text) {
  const bool octal = text.size() > 1 && text[0] == '0' && IsDigit(text[1]);
  size_t digits = TakeDigits(text);
  const bool integer = text.empty();
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    digits += TakeDigits(text);
  }
  if (digits == 0) return false;
  if (text.starts_with('e') || text.starts_with('E')) {
    text.remove_prefix(1);
    if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
    if (TakeDigits(text) == 0) return false;
  }
  return text.empty() && !(integer && octal);
}

bool IsHexadecimal(std::string_view text) {
  return text.size() > 2 && text.starts_with("0x") &&
         text.find_first_not_of("0123456789abcdefABCDEF", 2) == text.npos;
}

bool IsSpecialNumber(std::string_view text) {
  constexpr std::array<std::string_view, 6> kNames = {".inf", ".Inf", ".INF",
                                                      ".nan", ".NaN", ".NAN"};
  return std::ranges::find(kNames, text) != kNames.end();
}

// Returns the number without underscores if the text is one, else nothing.
std::string NumberText(std::string text) {
  if (text.empty() || text[0] == '_') return "";
  std::erase(text, '_');
  std::string_view magnitude = text;
  if (magnitude.starts_with('-') || magnitude.starts_with('+')) magnitude.remove_prefix(1);
  if (IsDecimal(magnitude) || IsHexadecimal(magnitude) || IsSpecialNumber(magnitude)) return text;
  return "";
}

bool IsOneOf(std::string_view text, std::string_view name) {
  std::string capital(name), upper(name);
  for (char& letter : upper) letter = static_cast<char>(letter - 'a' + 'A');
  capital[0] = upper[0];
  return text == name || text == capital || text == upper;
}

// What a scalar without quotes means.
ConfigNode ResolvePlain(const std::string& text, int line) {
  for (const char* name : {"true", "yes", "on"}) {
    if (IsOneOf(text, name)) return {Kind::kBool, "true", line, {}};
  }
  for (const char* name : {"false", "no", "off"}) {
    if (IsOneOf(text, name)) return {Kind::kBool, "false", line, {}};
  }
  const std::string number = NumberText(text);
  if (!number.empty()) return {Kind::kNumber, number, line, {}};
  return {Kind::kText, text, line, {}};
}

// True if the scalar that begins at this line and column, both from 0, perhaps with an anchor or a
// tag, has no quotes or closes them.
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

class YamlHandler : public YAML::EventHandler {
 public:
  explicit YamlHandler(std::string_view file) : builder_(file, DuplicateKeys::kKeep) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (TakeKey("")) return;
    builder_.Scalar(Kind::kNull, "null", Line(mark));
    Keep(anchor, mark);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    quote_ = tag == "!" ? std::optional(mark) : std::nullopt;
    if (TakeKey(value)) return;
    const bool text = tag == "!" || tag.ends_with(":str");
    ConfigNode node =
        text ? ConfigNode{Kind::kText, value, Line(mark), {}} : ResolvePlain(value, Line(mark));
    builder_.Scalar(node.kind, std::move(node.text), node.line);
    Keep(anchor, mark);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) builder_.Fail(Line(mark), "bad YAML: an alias of itself or a key");
    RequireValue(mark);
    builder_.Copy(found->second, Line(mark));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(Kind::kList, mark, anchor);
  }
  void OnSequenceEnd() override { Close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(Kind::kTable, mark, anchor);
  }
  void OnMapEnd() override {
    Merge();
    Close();
  }

  ConfigNode Take() { return builder_.Take(); }

  // Refuses a text in quotes that ends with the file, which yaml-cpp 0.7 takes for closed.
  void RequireClosedQuote(std::string_view text) const {
    if (!quote_ || IsQuoteClosed(text, quote_->line, quote_->column)) return;
    builder_.Fail(Line(*quote_), "bad YAML: a quote that is not closed");
  }

 private:
  struct Level {
    bool is_table = false;
    bool wants_key = false;
    YAML::anchor_t anchor = 0;
    YAML::Mark mark;
  };

  static int Line(const YAML::Mark& mark) { return mark.line + 1; }

  // True if the scalar is the key of an entry.
  bool TakeKey(const std::string& key) {
    if (levels_.empty() || !levels_.back().is_table) return false;
    const bool is_key = levels_.back().wants_key;
    levels_.back().wants_key = !is_key;
    if (is_key) builder_.Key(key);
    return is_key;
  }

  void RequireValue(const YAML::Mark& mark) {
    if (TakeKey("")) builder_.Fail(Line(mark), "bad key", "text");
  }

  void Open(Kind kind, const YAML::Mark& mark, YAML::anchor_t anchor) {
    RequireValue(mark);
    builder_.Open(kind, Line(mark));
    const bool is_table = kind == Kind::kTable;
    levels_.push_back({is_table, is_table, anchor, mark});
  }

  void Close() {
    const Level level = levels_.back();
    levels_.pop_back();
    builder_.Close();
    Keep(level.anchor, level.mark);
  }

  // Keeps the value that has just ended for aliases of its anchor.
  void Keep(YAML::anchor_t anchor, const YAML::Mark& mark) {
    if (anchor == 0) return;
    builder_.Count(SizeOf(builder_.last()), Line(mark));
    anchors_[anchor] = builder_.last();
  }

  // Adds what the merge key `<<` names, a table or a list of tables; own keys and earlier tables
  // win.
  void Merge() {
    ConfigNode& table = builder_.open_node();
    const auto found = std::ranges::find(table.entries, "<<", &ConfigEntry::key);
    if (found == table.entries.end()) return;
    const ConfigNode merged = std::move(found->value);
    table.entries.erase(found);
    if (std::ranges::find(table.entries, "<<", &ConfigEntry::key) != table.entries.end()) {
      builder_.Fail(merged.line, "several merge keys <<", "one, with a list of tables");
    }
    std::set<std::string> keys;
    for (const ConfigEntry& entry : table.entries) keys.insert(entry.key);
    std::vector<const ConfigNode*> sources;
    if (merged.kind == Kind::kTable) sources.push_back(&merged);
    if (merged.kind == Kind::kList) {
      for (const ConfigEntry& entry : merged.entries) sources.push_back(&entry.value);
    }
    if (sources.empty())
      builder_.Fail(merged.line, "bad merge key <<", "a table or a list of them");
    for (const ConfigNode* source : sources) {
      if (source->kind != Kind::kTable) builder_.Fail(merged.line, "bad merge key <<", "tables");
      for (const ConfigEntry& entry : source->entries) {
        if (keys.insert(entry.key).second) table.entries.push_back(entry);
      }
    }
  }

  ConfigTreeBuilder builder_;
  std::vector<Level> levels_;
  std::optional<YAML::Mark> quote_;  // where the last scalar begins, if not plain
  std::map<YAML::anchor_t, ConfigNode> anchors_;
};

}  // namespace

ConfigNode ParseYaml(std::string_view file, std::string_view text) {
  YamlHandler handler(file);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    parser.HandleNextDocument(handler);
    YamlHandler rest(file);
    if (parser.HandleNextDocument(rest)) {
      throw UsageError(Printable(file), "more than one YAML document", "one");
    }
  } catch (const YAML::Exception& error) {
    throw UsageError(ConfigPlace(file, error.mark.line + 1), "bad YAML: " + Printable(error.msg));
  }
  handler.RequireClosedQuote(text);
  return handler.Take();
}

}  // namespace dlsim::sim
