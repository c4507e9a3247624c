// SPDX-License-Identifier: Apache-2.0
// JSON as nlohmann reads it, with the comments and commas that hjson, by which DeepSpeed reads its
// files, allows; its events have no line numbers, only its syntax errors have.
#include <algorithm>
#include <cmath>
#include <string>

#include "sim/config/config_file.h"
#include "src/trace/strict_json.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

// The SAX interface of nlohmann, whose names are given.
class JsonHandler {
 public:
  explicit JsonHandler(std::string_view file) : builder_(file, DuplicateKeys::kRefuse) {}

  bool null() { return Scalar(Kind::kNull, "null"); }
  bool boolean(bool value) { return Scalar(Kind::kBool, value ? "true" : "false"); }
  bool number_integer(int64_t value) { return Scalar(Kind::kNumber, std::to_string(value)); }
  bool number_unsigned(uint64_t value) { return Scalar(Kind::kNumber, std::to_string(value)); }
  bool number_float(double, const std::string& text) { return Scalar(Kind::kNumber, text); }
  bool string(std::string& text) { return Scalar(Kind::kText, std::move(text)); }
  bool binary(nlohmann::json::binary_t&) { return false; }  // not in JSON

  bool start_object(size_t) { return Open(Kind::kTable); }
  bool start_array(size_t) { return Open(Kind::kList); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }
  bool key(std::string& name) {
    builder_.Key(std::move(name));
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& exception) {
    builder_.Fail(0, "bad JSON: " + JsonMessage(exception));
  }

  ConfigNode Take() { return builder_.Take(); }

 private:
  bool Scalar(Kind kind, std::string text) {
    builder_.Scalar(kind, std::move(text), 0);
    return true;
  }
  bool Open(Kind kind) {
    builder_.Open(kind, 0);
    return true;
  }
  bool Close() {
    builder_.Close();
    return true;
  }

  ConfigTreeBuilder builder_;
};

// Returns the end of the text in quotes that begins at `at`.
size_t SkipString(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return std::min(at + 1, text.size());
}

// Returns the end of the comment that begins at `at`, or `at` if there is none.
size_t SkipComment(std::string_view text, size_t at) {
  const std::string_view rest = text.substr(at);
  if (rest.starts_with('#') || rest.starts_with("//"))
    return std::min(text.find('\n', at), text.size());
  if (!rest.starts_with("/*")) return at;
  const size_t end = text.find("*/", at + 2);
  return end == text.npos ? at : end + 2;
}

// Returns the text with blanks in place of comments and of commas after a last value, so that what
// remains keeps its lines and columns.
std::string BlankExtras(std::string_view text) {
  std::string json(text);
  size_t comma = text.npos;  // one that may be the last
  char last = ',';           // the last character that was not blank
  for (size_t at = 0; at < text.size();) {
    const char letter = text[at];
    if (const size_t end = SkipComment(text, at); end > at) {
      for (; at < end; ++at) json[at] = text[at] == '\n' ? '\n' : ' ';
      continue;
    }
    const bool blank = std::string_view(" \t\r\n").find(letter) != std::string_view::npos;
    if (comma != text.npos && (letter == '}' || letter == ']')) json[comma] = ' ';
    if (!blank) {
      const bool after_value = std::string_view("{[:,").find(last) == std::string_view::npos;
      comma = letter == ',' && after_value ? at : text.npos;
      last = letter;
    }
    at = letter == '"' ? SkipString(text, at) : at + 1;
  }
  return json;
}

}  // namespace

ConfigNode ParseJsonConfig(std::string_view file, std::string_view text) {
  JsonHandler handler(file);
  nlohmann::json::sax_parse(BlankExtras(text), &handler);
  return handler.Take();
}

}  // namespace dlsim::sim
