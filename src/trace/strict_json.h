// SPDX-License-Identifier: Apache-2.0
// JSON from strangers: one-line errors, no duplicate keys, limited depth.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "dlsim/error.h"

namespace dlsim {

// Returns nlohmann's message without its "[json.exception...]" prefix, printable.
std::string JsonMessage(const nlohmann::json::exception& exception);

// Throws InputError for a zero byte, which nlohmann takes for the end of the text: it would ignore
// what follows.
void RefuseZeroByte(const std::string& place, std::string_view text);

// The events of nlohmann's SAX interface that are the same for every handler.
class StrictSax {
 public:
  explicit StrictSax(const std::string& place) : place_(place) {}

  bool binary(nlohmann::json::binary_t&) { return false; }  // not in JSON

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& exception) {
    throw InputError(place_, "bad JSON: " + JsonMessage(exception));
  }

 protected:
  std::string place_;
};

// Feeds the whole of `text` to `handler`, which throws InputError at a defect.
template <typename Handler>
void ParseJson(const std::string& place, std::string_view text, Handler& handler) {
  RefuseZeroByte(place, text);
  nlohmann::json::sax_parse(text.begin(), text.end(), &handler);
}

// Returns the JSON in `text`. Throws InputError for text that is none, or has duplicate keys or
// more than 32 levels.
nlohmann::json ParseStrictJson(const std::string& place, std::string_view text);

// Reads a JSON file of at most 32 MiB as ParseStrictJson does.
nlohmann::json ReadJsonFile(const std::string& path);

}  // namespace dlsim
