// SPDX-License-Identifier: Apache-2.0
#include "sim/config/config_file.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>

#include "dlsim/error.h"
#include "sim/base/text_input.h"
#include "src/trace/read_only_file.h"

namespace dlsim::sim {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 20;

// True for a line that only TOML has: `[table]` or `key = value`.
bool LooksLikeToml(std::string_view line) {
  if (line.starts_with('[')) return line.find(']') != line.npos;
  const size_t equals = line.find('=');
  return equals != line.npos && line.substr(0, equals).find_first_of(":{[") == line.npos;
}

// True for a line that only a command line has: a program that starts one, or an option as a word
// of its own.
bool LooksLikeShell(std::string_view line) {
  constexpr std::array<std::string_view, 4> kStarts = {"python ", "python3 ", "torchrun ", "set -"};
  const auto begins = [&](std::string_view start) { return line.starts_with(start); };
  return std::ranges::any_of(kStarts, begins) || line.starts_with("--") ||
         (line.find(" --") != line.npos && line.find(": ") == line.npos);
}

ConfigLanguage LanguageOfText(std::string_view text) {
  if (text.starts_with("#!")) return ConfigLanguage::kShell;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line.remove_prefix(std::min(line.find_first_not_of(" \t\r"), line.size()));
    if (line.empty() || line.starts_with('#')) continue;
    if (line.starts_with('{')) return ConfigLanguage::kJson;
    if (LooksLikeShell(line)) return ConfigLanguage::kShell;
    return LooksLikeToml(line) ? ConfigLanguage::kToml : ConfigLanguage::kYaml;
  }
  return ConfigLanguage::kYaml;
}

// A regular file tells its size before it is read.
std::string ReadText(const std::string& path) {
  std::error_code ignored;
  const auto type = std::filesystem::status(path, ignored).type();
  const bool has_no_size = path == "-" || type == std::filesystem::file_type::fifo;
  return has_no_size ? ReadTextInput(path, kMaxBytes) : ReadTextFile(path, kMaxBytes);
}

}  // namespace

ConfigLanguage GuessLanguage(std::string_view path, std::string_view text) {
  if (path.ends_with(".yaml") || path.ends_with(".yml")) return ConfigLanguage::kYaml;
  if (path.ends_with(".json")) return ConfigLanguage::kJson;
  if (path.ends_with(".toml")) return ConfigLanguage::kToml;
  if (path.ends_with(".sh") || path.ends_with(".bash") || path.ends_with(".slurm") ||
      path.ends_with(".sbatch")) {
    return ConfigLanguage::kShell;
  }
  return LanguageOfText(text);
}

ConfigNode ParseConfig(std::string_view file, std::string_view text, ConfigLanguage language) {
  if (text.find('\0') != text.npos) throw UsageError(Printable(file), "not a text file");
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // byte order mark
  ConfigNode root = language == ConfigLanguage::kYaml    ? ParseYaml(file, text)
                    : language == ConfigLanguage::kJson  ? ParseJsonConfig(file, text)
                    : language == ConfigLanguage::kShell ? ParseShell(file, text)
                                                         : ParseToml(file, text);
  if (root.kind != ConfigNode::Kind::kTable) {
    throw UsageError(Printable(file), "not a configuration", "keys with values");
  }
  return root;
}

ConfigNode ReadConfigFile(const std::string& path) {
  const std::string text = ReadText(path);
  return ParseConfig(InputName(path), text, GuessLanguage(path, text));
}

}  // namespace dlsim::sim
