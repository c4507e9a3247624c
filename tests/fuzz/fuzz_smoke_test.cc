// SPDX-License-Identifier: Apache-2.0
// Drives the fuzz targets over mutations of valid files, so that every compiler and sanitizer does.
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>

#include "dlsim/profile_file.h"
#include "src/trace/npy.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/support/trace_test_util.h"
#include "tests/support/zip_builder.h"

namespace dlsim {
namespace {

constexpr int kMutations = 20'000;

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

void Drive(int (*target)(const uint8_t*, size_t), const std::string& valid,
           int mutations = kMutations) {
  Mutator mutator(20261120);
  for (int i = 0; i < mutations; ++i) {
    const std::string bytes = i == 0 ? valid : mutator.Mutate(valid);
    EXPECT_EQ(target(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()), 0);
  }
}

std::string SmallNpy() {
  const std::array<uint64_t, 2> shape = {2, 3};
  return MakeNpyHeader(NpyType::kF16, shape) + std::string(12, 'x');
}

TEST(FuzzSmoke, Safetensors) {
  Drive(FuzzSafetensors,
        SafetensorsBytes(R"({"__metadata__":{"step":"1"},)"
                         R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
                         R"("b":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}} )",
                         "0123456789"));
}

TEST(FuzzSmoke, Npy) { Drive(FuzzNpy, SmallNpy()); }

TEST(FuzzSmoke, Npz) {
  Drive(FuzzNpz, ZipBytes({{.name = "a.npy", .data = SmallNpy()}, Deflated("b.npy", SmallNpy())}));
}

TEST(FuzzSmoke, Profile) {
  const TempDir dir;
  const std::string path = dir.path() + "/a.dlprof";
  ProfileSettings settings;
  settings.ladder = {{ParseFormat("fp16")}, {Rounding::kNearestEven}, {Subnormals::kKeep}, {1.0f}};
  const HistogramEdges edges = EdgesOf(settings.ladder);
  ProfileStep step;
  step.micro_steps = {0, 1};
  step.tensors = {{"a", Role::kGrad, DType::kF32, {2, 1}}, {"b", Role::kActGrad, DType::kF16, {}}};
  HistogramCounter counter(edges);
  for (size_t part = 0; part < 2; ++part) {
    counter.Add(std::array{1.5f, -0.25f, 0.0f, 1e-30f, 1.75f});
    step.histograms.push_back({counter.Take(), counter.Take()});
  }
  ProfileWriter writer(path, settings, ProfileWriter::Existing::kReplace);
  writer.Append(EncodeStep(step, edges));
  writer.Commit();
  std::ifstream file(path, std::ios::binary);
  Drive(FuzzProfile, std::string(std::istreambuf_iterator<char>(file), {}));
}

std::string ConfigBytes(char language, const std::string& name) {
  std::ifstream file(DLSIM_TEST_DATA "/config/" + name, std::ios::binary);
  return language + std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(FuzzSmoke, Config) {
  for (const char* name : {"model_zoo_old.yaml", "tf_trainer.yaml", "same_path.yaml"}) {
    Drive(FuzzConfig, ConfigBytes(0, name), kMutations / 5);
  }
  Drive(FuzzConfig, ConfigBytes(1, "deepspeed_zero3.json"), kMutations / 5);
  for (const char* name : {"torch_scaler.toml", "apex.toml", "dlsim.toml"}) {
    Drive(FuzzConfig, ConfigBytes(2, name), kMutations / 5);
  }
}

}  // namespace
}  // namespace dlsim
