// SPDX-License-Identifier: Apache-2.0
// Reads YAML, JSON, TOML and command lines into one kind of tree, with limits for files of
// strangers.
#pragma once

#include <string>
#include <string_view>

#include "sim/config/config_tree.h"

namespace dlsim::sim {

enum class ConfigLanguage { kYaml, kJson, kToml, kShell };

// Returns the language that the extension names (.yaml, .yml, .json, .toml, .sh), else the one that
// the text looks like.
ConfigLanguage GuessLanguage(std::string_view path, std::string_view text);

// Parses a whole text; `file` is its name in messages. The result is a table. Throws Error (exit
// code 2) for bad syntax, a key given twice (which YAML leaves to ConfigBlock), and more values or
// levels than the builder allows.
ConfigNode ParseConfig(std::string_view file, std::string_view text, ConfigLanguage language);

// Reads a file or a pipe of at most 1 MiB, or, by "-", standard input. Throws Error: exit code 3 if
// it cannot be read, else as above.
ConfigNode ReadConfigFile(const std::string& path);

// The parsers of ParseConfig; the text holds no zero byte.
ConfigNode ParseYaml(std::string_view file, std::string_view text);
ConfigNode ParseJsonConfig(std::string_view file, std::string_view text);
ConfigNode ParseToml(std::string_view file, std::string_view text);
ConfigNode ParseShell(std::string_view file, std::string_view text);

}  // namespace dlsim::sim
