// SPDX-License-Identifier: Apache-2.0
// dlsim join-shards: what it makes of shards, and what it refuses.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/support/run_command.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

namespace fs = std::filesystem;

class JoinShards : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return dir_.path() + "/" + name; }

  // Writes a step of one shard.
  void WriteShard(int rank, const std::vector<BuiltTensor>& tensors,
                  std::map<std::string, std::string> metadata = {}, int step = 3) {
    const std::string folder = "run/shard-0000" + std::to_string(rank) + "-of-00002";
    fs::create_directories(Path(folder));
    metadata.insert({{"step", std::to_string(step)}, {"grad_scale", "8.0"}});
    dir_.Write(folder + "/step-0000000" + std::to_string(step) + ".safetensors",
               BuildSafetensors(tensors, metadata));
  }

  void ExpectRefused(const std::string& output, int exit_code, const std::string& text) {
    const CommandResult result = RunCommand({"join-shards", Path("run"), "-o", output});
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_NE(result.err.find(text), std::string::npos) << result.err;
    EXPECT_FALSE(fs::exists(output) && !fs::is_empty(output));
  }

  TempDir dir_;
};

BuiltTensor Column(int index, std::initializer_list<float> values) {
  const std::string name = "w.shard-" + std::to_string(index) + "-of-2.grad";
  return {name, "F32", {2, values.size() / 2}, Float32Bytes(values)};
}

TEST_F(JoinShards, PutsColumnsSideBySide) {
  const std::string grid = R"({"w.grad": [[1, 2]]})";
  WriteShard(0, {Column(0, {1, 2, 3, 4}), FloatTensor("b.grad", {9})}, {{"shard_grid", grid}});
  WriteShard(1, {Column(1, {5, 6})}, {{"loss", "0.5"}});
  EXPECT_EQ(Succeed({"join-shards", Path("run"), "-o", Path("joined")}),
            Path("joined") + ": one trace of 2 shards\n");
  const TraceReader reader = OpenTrace({Path("joined")});
  const Recording recording = reader.Load(0).recordings.at(0);
  EXPECT_EQ(recording.metadata, (std::map<std::string, std::string>{
                                    {"step", "3"}, {"grad_scale", "8.0"}, {"loss", "0.5"}}));
  ASSERT_EQ(recording.tensors.size(), 2u);
  EXPECT_EQ(recording.tensors[0].name, "w.grad");
  EXPECT_EQ(recording.tensors[0].shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(TensorBytes(recording.tensors[0]), Float32Bytes({1, 2, 5, 3, 4, 6}));
  EXPECT_EQ(TensorBytes(recording.tensors[1]), Float32Bytes({9}));
}

TEST_F(JoinShards, RefusesWhatIsNotOneRun) {
  ExpectRefused(Path("joined"), 3, "no shards, expected such as 'shard-00000-of-00004'");
  WriteShard(1, {Column(1, {5, 6})});
  ExpectRefused(Path("joined"), 3,
                "missing shard, expected 2 shards from 0 on, got none of number 0");
  WriteShard(0, {Column(0, {1, 2})}, {{"grad_scale", "4.0"}});
  ExpectRefused(Path("joined"), 3, "another grad_scale than in the first shard, expected 4, got 8");
  WriteShard(0, {Column(0, {1, 2})}, {}, 4);
  ExpectRefused(Path("joined"), 3, "other steps than in the first shard, expected the same");
  ExpectRefused(Path("joined.dlprof"), 2, "is of another kind than the shards");
}

TEST_F(JoinShards, ReplacesNoTrace) {
  WriteShard(0, {Column(0, {1, 2})});
  WriteShard(1, {Column(1, {5, 6})});
  Succeed({"join-shards", Path("run"), "-o", Path("joined"), "--quiet"});
  const CommandResult again = RunCommand({"join-shards", Path("run"), "-o", Path("joined")});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_NE(again.err.find("holds a trace already, expected another directory"), std::string::npos);
}

TEST_F(JoinShards, IsWhatAReplayOfShardsAsksFor) {
  WriteShard(0, {Column(0, {1, 2})});
  const CommandResult result = RunCommand({"info", Path("run")});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_NE(result.err.find("holds shards of one model, not yet joined, expected the result of "
                            "dlsim join-shards " +
                            Path("run") + " -o DIRECTORY"),
            std::string::npos)
      << result.err;
}

}  // namespace
}  // namespace dlsim
