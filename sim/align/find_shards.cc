// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>

#include "dlsim/error.h"
#include "sim/align/join_shards.h"
#include "src/trace/tensor_rules.h"

namespace dlsim::sim {
namespace {

namespace fs = std::filesystem;

struct ShardOf {
  size_t rank = 0;
  size_t ranks = 1;
};

// Reads what is between `before` and `after` in a name: "shard-00001-of-00004".
std::optional<ShardOf> ParseShard(std::string_view name, std::string_view before,
                                  std::string_view after) {
  constexpr std::string_view kShard = "shard-", kOf = "-of-";
  constexpr size_t kDigits = 5;
  if (name.size() != before.size() + kShard.size() + 2 * kDigits + kOf.size() + after.size() ||
      !name.starts_with(before) || !name.ends_with(after)) {
    return std::nullopt;
  }
  name.remove_prefix(before.size());
  if (!name.starts_with(kShard) || name.substr(kShard.size() + kDigits, kOf.size()) != kOf) {
    return std::nullopt;
  }
  const std::optional<int64_t> rank = ParseDigits(name.substr(kShard.size(), kDigits));
  const std::optional<int64_t> ranks =
      ParseDigits(name.substr(kShard.size() + kDigits + kOf.size(), kDigits));
  if (!rank || !ranks || *rank >= *ranks) return std::nullopt;
  return ShardOf{static_cast<size_t>(*rank), static_cast<size_t>(*ranks)};
}

}  // namespace

std::vector<std::string> FindShards(const std::string& path) {
  const fs::path given(path);
  const bool is_profile = given.extension() == ".dlprof";
  const fs::path parent = given.parent_path().empty() ? "." : given.parent_path();
  const fs::path folder = is_profile ? parent : given;
  const std::string before = is_profile ? given.stem().string() + "." : "";
  std::map<size_t, std::string> found;  // by rank
  size_t ranks = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::optional<ShardOf> shard =
        ParseShard(entry.path().filename().string(), before, is_profile ? ".dlprof" : "");
    if (!shard) continue;
    if (ranks != 0 && ranks != shard->ranks) {
      throw InputError(Printable(path), "holds shards of two runs", "one number of processes",
                       std::to_string(std::min(ranks, shard->ranks)) + " and " +
                           std::to_string(std::max(ranks, shard->ranks)));
    }
    ranks = shard->ranks;
    found[shard->rank] = entry.path().string();
  }
  const std::string name = before + "shard-00000-of-00004" + (is_profile ? ".dlprof" : "");
  if (ranks == 0) throw InputError(Printable(path), "no shards", "such as " + Quoted(name));
  std::vector<std::string> shards;
  for (const auto& [rank, shard] : found) {
    if (rank == shards.size()) shards.push_back(shard);
  }
  if (shards.size() < ranks) {
    throw InputError(Printable(path), "missing shard", std::to_string(ranks) + " shards from 0 on",
                     "none of number " + std::to_string(shards.size()));
  }
  return shards;
}

}  // namespace dlsim::sim
