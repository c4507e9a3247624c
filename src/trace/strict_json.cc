// SPDX-License-Identifier: Apache-2.0
#include "src/trace/strict_json.h"

#include <algorithm>
#include <set>
#include <vector>

#include "src/base/file.h"

namespace dlsim {

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

nlohmann::json ParseJson(const std::string& place, std::string_view text,
                         const nlohmann::json::parser_callback_t& take) {
  // nlohmann takes a zero byte for the end of the text: it would ignore what follows.
  if (const size_t zero = text.find('\0'); zero != text.npos) {
    throw InputError(place, "bad JSON: zero byte at offset " + std::to_string(zero));
  }
  try {
    return nlohmann::json::parse(text.begin(), text.end(), take);
  } catch (const nlohmann::json::exception& exception) {
    throw InputError(place, "bad JSON: " + JsonMessage(exception));
  }
}

nlohmann::json ParseStrictJson(const std::string& place, std::string_view text) {
  constexpr size_t kMaxDepth = 32;
  std::vector<std::set<std::string>> keys;  // of the objects, and none of the arrays, that are open
  return ParseJson(place, text, [&](int around, JsonEvent event, const nlohmann::json& parsed) {
    const auto depth = static_cast<size_t>(around);
    if (event == JsonEvent::object_start || event == JsonEvent::array_start) {
      if (depth == kMaxDepth) {
        throw InputError(place, "JSON too deep",
                         "at most " + std::to_string(kMaxDepth) + " levels");
      }
      keys.resize(depth);
      keys.emplace_back();
    }
    if (event == JsonEvent::key && !keys[depth - 1].insert(parsed.get<std::string>()).second) {
      throw InputError(place, "duplicate key " + Quoted(parsed.get<std::string>()));
    }
    return true;
  });
}

nlohmann::json ReadJsonFile(const std::string& path) {
  constexpr uint64_t kMaxJsonBytes = uint64_t{32} << 20;
  return ParseStrictJson(Printable(path), ReadTextFile(path, kMaxJsonBytes));
}

}  // namespace dlsim
