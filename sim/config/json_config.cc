// SPDX-License-Identifier: Apache-2.0
// JSON as nlohmann reads it; its events have no line numbers, only its syntax errors have.
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

}  // namespace

ConfigNode ParseJsonConfig(std::string_view file, std::string_view text) {
  JsonHandler handler(file);
  nlohmann::json::sax_parse(text.begin(), text.end(), &handler);
  return handler.Take();
}

}  // namespace dlsim::sim
