// SPDX-License-Identifier: Apache-2.0
#include "src/trace/shard_files.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "dlsim/error.h"

namespace dlsim {
namespace {

constexpr std::string_view kShardDigits = "0123456789";

// Removes a number of five digits at the end.
bool TakeNumber(std::string_view& text) {
  constexpr size_t kLength = 5;
  if (text.size() < kLength) return false;
  const std::string_view number = text.substr(text.size() - kLength);
  if (number.find_first_not_of(kShardDigits) != number.npos) return false;
  text.remove_suffix(kLength);
  return true;
}

bool TakeSuffix(std::string_view suffix, std::string_view& text) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

// Returns the index of a shard, "a/b.safetensors.index.json" of "a/b-00001-of-00002.safetensors";
// empty for other names.
std::string IndexOf(const std::string& path) {
  std::string_view stem = path;
  const bool is_shard = TakeSuffix(".safetensors", stem) && TakeNumber(stem) &&
                        TakeSuffix("-of-", stem) && TakeNumber(stem) && TakeSuffix("-", stem);
  return is_shard ? std::string(stem) + ".safetensors.index.json" : "";
}

}  // namespace

std::vector<std::string> GatherShards(const std::vector<std::string>& paths,
                                      std::vector<std::string>& notes) {
  std::vector<std::string> gathered;
  for (auto begin = paths.begin(); begin != paths.end();) {
    const std::string index = IndexOf(*begin);
    const auto end = std::find_if(begin + 1, paths.end(), [&](const std::string& path) {
      return index.empty() || IndexOf(path) != index;
    });
    if (end - begin == 1) {
      gathered.push_back(*begin);
    } else if (std::filesystem::exists(index)) {
      gathered.push_back(index);
      notes.push_back(std::to_string(end - begin) + " files are shards of one step: read by " +
                      Printable(index));
    } else {
      throw InputError(Printable(*begin), "shards of one step without their index",
                       Printable(index));
    }
    begin = end;
  }
  return gathered;
}

}  // namespace dlsim
