// SPDX-License-Identifier: Apache-2.0
// JSON from strangers: one-line errors, no duplicate keys, limited depth.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "dlsim/error.h"

namespace dlsim {

// Returns nlohmann's message without its "[json.exception...]" prefix, printable.
std::string JsonMessage(const nlohmann::json::exception& exception);

// What nlohmann's parser tells as it goes through a text; see nlohmann::json::parse_event_t.
using JsonEvent = nlohmann::json::parse_event_t;

// Returns the JSON in `text`, but for what `take` refuses; it may throw. Throws InputError for text
// that is none.
nlohmann::json ParseJson(const std::string& place, std::string_view text,
                         const nlohmann::json::parser_callback_t& take);

// Returns the JSON in `text`. Throws InputError for text that is none, or has duplicate keys or
// more than 32 levels.
nlohmann::json ParseStrictJson(const std::string& place, std::string_view text);

// Reads a JSON file of at most 32 MiB as ParseStrictJson does.
nlohmann::json ReadJsonFile(const std::string& path);

}  // namespace dlsim
