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
  // nlohmann takes a zero byte for the end of the text and would ignore what follows.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    throw InputError(place, "bad JSON: zero byte at offset " + std::to_string(zero));
  }
  nlohmann::json::sax_parse(text.begin(), text.end(), &handler);
}

// Throws InputError for text that is no JSON, or has duplicate keys or more than 32 levels.
void CheckStrictJson(const std::string& place, std::string_view text);

// Reads a JSON file of at most 32 MiB, with no duplicate keys and at most 32 levels.
nlohmann::json ReadJsonFile(const std::string& path);

}  // namespace dlsim
