// SPDX-License-Identifier: Apache-2.0
// Drives the fuzz targets over mutations of their corpus, so that every compiler and sanitizer
// does.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/fuzz_targets.h"

namespace dlsim {
namespace {

// Numbers and tokens near which the parsers decide.
constexpr std::array<std::string_view, 12> kTokens = {"\xFF\xFF\xFF\xFF",
                                                      "\x7F",
                                                      "0",
                                                      "-1",
                                                      "18446744073709551615",
                                                      "281474976710656",
                                                      "{\"a\":",
                                                      "[[[[",
                                                      "}}}}",
                                                      "\\u",
                                                      "1e999",
                                                      "__metadata__"};

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  std::string Mutate(std::string bytes) {
    for (size_t count = 1 + Below(4); count > 0; --count) MutateOnce(bytes);
    return bytes;
  }

 private:
  size_t Below(size_t limit) { return random_() % limit; }

  void MutateOnce(std::string& bytes) {
    const size_t at = Below(bytes.size() + 1);
    const size_t length = std::min(Below(16), bytes.size() - at);
    switch (Below(6)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << Below(8)));
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(Below(256));
        break;
      case 2:
        bytes.erase(at, length);
        break;
      case 3:
        bytes.insert(at, bytes.substr(at, length));
        break;
      case 4:
        bytes.insert(at, kTokens[Below(kTokens.size())]);
        break;
      default:
        bytes.replace(at, length, kTokens[Below(kTokens.size())]);
    }
  }

  std::mt19937 random_;
};

struct FuzzTarget {
  const char* name;  // of its folder in the corpus
  int (*run)(const uint8_t* bytes, size_t size);
  int mutations;
};

constexpr std::array kTargets = {
    FuzzTarget{"safetensors", FuzzSafetensors, 20'000},
    FuzzTarget{"npy", FuzzNpy, 20'000},
    FuzzTarget{"npz", FuzzNpz, 20'000},
    FuzzTarget{"dump", FuzzDump, 5'000},
    FuzzTarget{"shard_index", FuzzShardIndex, 500},
    FuzzTarget{"trace_json", FuzzTraceJson, 500},
    FuzzTarget{"profile", FuzzProfile, 2'000},
    FuzzTarget{"profile_settings", FuzzProfileSettings, 1'000},
    FuzzTarget{"expectation", FuzzExpectation, 20'000},
    FuzzTarget{"state", FuzzState, 5'000},
};

// The files of a target's corpus, in the order of their names.
std::vector<std::string> Corpus(const std::string& target) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(DLSIM_FUZZ_CORPUS "/" + target)) {
    paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  std::vector<std::string> files;
  for (const std::filesystem::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return files;
}

class FuzzSmoke : public testing::TestWithParam<FuzzTarget> {};

TEST_P(FuzzSmoke, HoldsOnMutations) {
  const FuzzTarget& target = GetParam();
  const std::vector<std::string> corpus = Corpus(target.name);
  ASSERT_FALSE(corpus.empty());
  Mutator mutator(20261120);
  const auto run = [&](const std::string& bytes) {
    EXPECT_EQ(target.run(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()), 0);
  };
  std::ranges::for_each(corpus, run);
  for (int i = 0; i < target.mutations; ++i) {
    run(mutator.Mutate(corpus[static_cast<size_t>(i) % corpus.size()]));
  }
}

INSTANTIATE_TEST_SUITE_P(Readers, FuzzSmoke, testing::ValuesIn(kTargets),
                         [](const auto& of) { return std::string(of.param.name); });

}  // namespace
}  // namespace dlsim
