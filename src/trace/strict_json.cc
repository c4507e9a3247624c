// SPDX-License-Identifier: Apache-2.0
#include "src/trace/strict_json.h"

#include <set>
#include <vector>

#include "src/trace/read_only_file.h"

namespace dlsim {
namespace {

constexpr uint64_t kMaxJsonBytes = uint64_t{32} << 20;
constexpr size_t kMaxDepth = 32;

// Checks what nlohmann's own document builder lets pass: depth and duplicate keys.
class CheckingSax : public StrictSax {
 public:
  using StrictSax::StrictSax;

  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(int64_t) { return true; }
  bool number_unsigned(uint64_t) { return true; }
  bool number_float(double, const std::string&) { return true; }
  bool string(std::string&) { return true; }
  bool start_object(size_t) { return Enter(); }
  bool end_object() { return Leave(); }
  bool start_array(size_t) { return Enter(); }
  bool end_array() { return Leave(); }

  bool key(std::string& name) {
    if (!keys_.back().insert(name).second) {
      throw InputError(place_, "duplicate key '" + Printable(name) + "'");
    }
    return true;
  }

 private:
  bool Enter() {
    if (keys_.size() == kMaxDepth) {
      throw InputError(place_, "JSON too deep", "at most " + std::to_string(kMaxDepth) + " levels");
    }
    keys_.emplace_back();
    return true;
  }

  bool Leave() {
    keys_.pop_back();
    return true;
  }

  std::vector<std::set<std::string>> keys_;  // of the objects that are open
};

}  // namespace

std::string JsonMessage(const nlohmann::json::exception& exception) {
  std::string_view message = exception.what();
  if (const size_t end = message.find("] "); message.starts_with('[') && end != message.npos) {
    message.remove_prefix(end + 2);
  }
  // Nothing is quoted around the message: its quotes stay, which Printable would write as \x27.
  std::string text;
  while (!message.empty()) {
    const size_t end = std::min(message.find_first_of("'\""), message.size());
    text += Printable(message.substr(0, end));
    if (end < message.size()) text += message[end];
    message.remove_prefix(std::min(end + 1, message.size()));
  }
  return text;
}

void CheckStrictJson(const std::string& place, std::string_view text) {
  CheckingSax checker(place);
  ParseJson(place, text, checker);
}

nlohmann::json ReadJsonFile(const std::string& path) {
  const std::string text = ReadTextFile(path, kMaxJsonBytes);
  CheckStrictJson(Printable(path), text);
  return nlohmann::json::parse(text);
}

}  // namespace dlsim
