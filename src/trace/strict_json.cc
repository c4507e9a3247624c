// SPDX-License-Identifier: Apache-2.0
#include "src/trace/strict_json.h"

#include <set>
#include <vector>

#include "src/base/file.h"
#include "src/base/text.h"

namespace dlsim {

std::string JsonMessage(const nlohmann::json::exception& exception) {
  std::string_view message = exception.what();
  if (const size_t end = message.find("] "); message.starts_with('[') && end != message.npos) {
    message.remove_prefix(end + 2);
  }
  constexpr size_t kMostBytes = 1024;
  return EscapeHidden(message, {}, kMostBytes);
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
