// SPDX-License-Identifier: Apache-2.0
#include "dlsim/profile_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

#include "src/profile/step_code.h"
#include "tests/support/profile_test_util.h"

namespace dlsim {
namespace {

namespace fs = std::filesystem;
using Existing = ProfileWriter::Existing;

void ExpectTotals(const ProfileTotals& got, const ProfileStep& step) {
  const ProfileTotals expected = TotalsOf(step);
  EXPECT_EQ(got.step, expected.step);
  EXPECT_EQ(got.gradients, expected.gradients);
  EXPECT_EQ(got.activations, expected.activations);
}

class ProfileFileTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return dir_.path() + "/" + name; }

  TempDir dir_;
  ProfileSettings settings_ = SettingsOf(SmallLadder());
  HistogramEdges edges_ = EdgesOf(settings_.ladder);
  std::vector<ProfileStep> steps_ = StepsOf(kSingle, edges_);
  std::vector<EncodedStep> encoded_ = Encode(steps_, edges_);
};

TEST_F(ProfileFileTest, GivesBackWhatWasWritten) {
  const ProfileSettings settings = SettingsOf(DefaultLadder());
  const HistogramEdges edges = EdgesOf(settings.ladder);
  for (const char* trace : {"lm-trouble-cut", "lm-kjv-accum-cut", "reg-diabetes-cut"}) {
    const std::vector<ProfileStep> steps = StepsOf(kTraces + trace, edges);
    WriteProfile(Path("a.dlprof"), settings, Encode(steps, edges));
    const ProfileReader reader = OpenProfile({Path("a.dlprof")});
    EXPECT_EQ(reader.edges(), edges);
    ASSERT_EQ(reader.step_count(), steps.size());
    uint64_t trace_bytes = 0;
    for (size_t i = 0; i < steps.size(); ++i) {
      EXPECT_EQ(reader.step_number(i), steps[i].step);
      EXPECT_EQ(reader.Load(i), steps[i]) << trace << " step " << i;
      ExpectTotals(reader.LoadTotals(i), steps[i]);
      for (const ProfileFile& file : steps[i].files) trace_bytes += file.bytes;
    }
    EXPECT_EQ(reader.trace_bytes(), trace_bytes);
    EXPECT_EQ(reader.file_bytes(), fs::file_size(Path("a.dlprof")));
  }
}

// Its steps are those of version 2 without hashes.
TEST_F(ProfileFileTest, KeepsWhatIsKnownOfItsFiles) {
  for (uint64_t content : {uint64_t{1}, ~uint64_t{0}}) {
    for (ProfileStep& step : steps_) step.files[0].content = content++;
    WriteProfile(Path("a"), settings_, Encode(steps_, edges_));
    const ProfileReader reader = OpenProfile({Path("a")});
    for (size_t i = 0; i < steps_.size(); ++i) EXPECT_EQ(reader.Load(i), steps_[i]);
  }
}

TEST_F(ProfileFileTest, RefusesAStepOfFilesThatHeldSomethingElse) {
  for (ProfileStep& step : steps_) step.files[0].content = 7;
  WriteProfile(Path("a"), settings_, Encode(steps_, edges_));
  for (ProfileStep& step : steps_) step.files[0].content = 8;
  WriteProfile(Path("b"), settings_, Encode(steps_, edges_));
  ExpectInputError([&] { OpenProfile({Path("a"), Path("b")}); }, {"holds another step"});
}

TEST_F(ProfileFileTest, GivesBackItsSettings) {
  settings_.ladder = DefaultLadder();
  settings_.tensors = "block.*\"\xC3\xA9";
  settings_.accumulation = Accumulation::kSumThenQuantize;
  settings_.accumulate_steps = 7;
  WriteProfile(Path("a.dlprof"), settings_, {});
  const ProfileSettings got = OpenProfile({Path("a.dlprof")}).settings();
  ASSERT_EQ(got.ladder.formats.size(), settings_.ladder.formats.size());
  for (size_t i = 0; i < got.ladder.formats.size(); ++i) {
    EXPECT_EQ(got.ladder.formats[i].name, settings_.ladder.formats[i].name);
    EXPECT_EQ(got.ladder.formats[i].format, settings_.ladder.formats[i].format);
  }
  EXPECT_EQ(got.ladder.roundings, settings_.ladder.roundings);
  EXPECT_EQ(got.ladder.subnormals, settings_.ladder.subnormals);
  EXPECT_EQ(got.ladder.scales, settings_.ladder.scales);
  EXPECT_EQ(got.tensors, settings_.tensors);
  EXPECT_EQ(got.accumulation, settings_.accumulation);
  EXPECT_EQ(got.accumulate_steps, settings_.accumulate_steps);
  EXPECT_EQ(got.description, settings_.description);
}

TEST_F(ProfileFileTest, RefusesSettingsThatAreNotUtf8) {
  settings_.tensors = "\xFF*";
  ExpectInputError([&] { WriteProfile(Path("a.dlprof"), settings_, {}); }, {"a.dlprof", "UTF-8"});
}

TEST_F(ProfileFileTest, IsRecognized) {
  WriteProfile(Path("a.dlprof"), settings_, encoded_);
  EXPECT_TRUE(ProfileReader::IsProfile(Path("a.dlprof")));
  EXPECT_FALSE(ProfileReader::IsProfile(dir_.Write("b", "DLPRO")));
  EXPECT_FALSE(ProfileReader::IsProfile(dir_.Write("c", "")));
  EXPECT_FALSE(ProfileReader::IsProfile(dir_.path()));
  EXPECT_FALSE(ProfileReader::IsProfile(Path("missing")));
  EXPECT_FALSE(ProfileReader::IsProfile(kSingle + "/trace.json"));
}

TEST_F(ProfileFileTest, MayHaveNoSteps) {
  WriteProfile(Path("a.dlprof"), settings_, {});
  const ProfileReader reader = OpenProfile({Path("a.dlprof")});
  EXPECT_EQ(reader.step_count(), 0u);
  EXPECT_EQ(reader.trace_bytes(), 0u);
}

TEST_F(ProfileFileTest, MayHaveStepsWithoutTensorsOrParts) {
  std::vector<ProfileStep> steps(2);
  steps[0].step = -3;
  steps[0].micro_steps = {-1};
  steps[0].histograms.resize(1);
  steps[1].step = 9;
  WriteProfile(Path("a.dlprof"), settings_, Encode(steps, edges_));
  const ProfileReader reader = OpenProfile({Path("a.dlprof")});
  EXPECT_EQ(reader.Load(0), steps[0]);
  EXPECT_EQ(reader.Load(1), steps[1]);
}

TEST_F(ProfileFileTest, RepeatsTensorsOnlyWhereTheyChange) {
  const size_t bytes = encoded_[0].tensors.size();
  WriteProfile(Path("same.dlprof"), settings_, encoded_);
  for (size_t i = 1; i < steps_.size(); i += 2) steps_[i].tensors[0].name = "renamed";
  WriteProfile(Path("other.dlprof"), settings_, Encode(steps_, edges_));
  const size_t same = fs::file_size(Path("same.dlprof"));
  const size_t other = fs::file_size(Path("other.dlprof"));
  EXPECT_GT(other, same + (steps_.size() - 2) * bytes);
  const ProfileReader reader = OpenProfile({Path("other.dlprof")});
  for (size_t i = steps_.size(); i-- > 0;) EXPECT_EQ(reader.Load(i), steps_[i]);
}

TEST_F(ProfileFileTest, IsReadByManyThreads) {
  for (size_t i = 1; i < steps_.size(); i += 2) steps_[i].tensors[0].name = "renamed";
  WriteProfile(Path("a.dlprof"), settings_, Encode(steps_, edges_));
  const ProfileReader reader = OpenProfile({Path("a.dlprof")});
  std::vector<size_t> wrong(4);
  std::vector<std::thread> threads;
  for (size_t& count : wrong) {
    threads.emplace_back([&] {
      for (size_t i = 0; i < 4 * steps_.size(); ++i) {
        const size_t step = i % steps_.size();
        if (!(reader.Load(step) == steps_[step])) ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::accumulate(wrong.begin(), wrong.end(), size_t{0}), 0u);
}

TEST_F(ProfileFileTest, MergesAnyPartitionInAnyOrderToTheSameBytes) {
  steps_[5].tensors.pop_back();
  steps_[5].histograms[0].pop_back();
  steps_[5].channels.pop_back();
  encoded_ = Encode(steps_, edges_);
  WriteProfile(Path("whole.dlprof"), settings_, encoded_);
  const std::string whole = ReadBytes(Path("whole.dlprof"));
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::vector<EncodedStep>> shards(1 + random() % 5);
    for (const EncodedStep& step : encoded_) {
      shards[random() % shards.size()].push_back(step);
      if (random() % 4 != 0) continue;
      std::vector<EncodedStep>& also = shards[random() % shards.size()];
      if (also.empty() || also.back().step < step.step) also.push_back(step);
    }
    std::vector<std::string> paths;
    for (const std::vector<EncodedStep>& shard : shards) {
      paths.push_back(Path("shard" + std::to_string(paths.size())));
      WriteProfile(paths.back(), settings_, shard);
    }
    std::shuffle(paths.begin(), paths.end(), random);
    MergeProfiles(paths, Path("merged.dlprof"));
    ASSERT_EQ(ReadBytes(Path("merged.dlprof")), whole);
    EXPECT_EQ(OpenProfile(paths).step_count(), steps_.size());
  }
}

TEST_F(ProfileFileTest, MayBeMergedIntoOneOfTheParts) {
  WriteProfile(Path("whole.dlprof"), settings_, encoded_);
  WriteProfile(Path("a"), settings_, {encoded_.begin(), encoded_.begin() + 3});
  WriteProfile(Path("b"), settings_, {encoded_.begin() + 3, encoded_.end()});
  MergeProfiles(std::vector<std::string>{Path("b"), Path("a")}, Path("a"));
  EXPECT_EQ(ReadBytes(Path("a")), ReadBytes(Path("whole.dlprof")));
}

TEST_F(ProfileFileTest, LeavesNothingOfAMergeThatFails) {
  WriteProfile(Path("a"), settings_, encoded_);
  std::string bytes = ReadBytes(Path("a"));
  bytes[bytes.size() / 2] = static_cast<char>(~bytes[bytes.size() / 2]);
  dir_.Write("a", bytes);
  ExpectInputError([&] { MergeProfiles(std::vector<std::string>{Path("a")}, Path("b")); },
                   {Path("a"), "checksum"});
  EXPECT_FALSE(fs::exists(Path("b")));
  EXPECT_FALSE(fs::exists(Path("b.partial")));
}

TEST_F(ProfileFileTest, RefusesToMergeDifferentStepsOfOneNumber) {
  WriteProfile(Path("a"), settings_, encoded_);
  steps_[2].metadata["loss"] = "another";
  WriteProfile(Path("b"), settings_, Encode({steps_[2]}, edges_));
  const std::string step = "step " + std::to_string(steps_[2].step);
  ExpectInputError([&] { OpenProfile({Path("a"), Path("b")}); }, {Path("a"), Path("b"), step});
}

// As a step that another version of libzstd compressed.
TEST_F(ProfileFileTest, MergesEqualStepsOfOtherBytes) {
  const StepParts parts = SplitStep("step", encoded_[2].bytes);
  std::string totals(parts.totals);
  size_t size_end = 0;
  while ((totals[size_end] & 0x80) != 0) ++size_end;
  totals[size_end] = static_cast<char>(totals[size_end] | 0x80);
  totals.insert(size_end + 1, 1, '\0');  // the same number in one byte more
  EncodedStep same = encoded_[2];
  same.bytes = JoinStep({totals, parts.histograms});
  WriteProfile(Path("a"), settings_, encoded_);
  WriteProfile(Path("b"), settings_, {same});
  EXPECT_EQ(OpenProfile({Path("a"), Path("b")}).Load(2), steps_[2]);
  MergeProfiles(std::vector<std::string>{Path("a"), Path("b")}, Path("ab"));
  MergeProfiles(std::vector<std::string>{Path("b"), Path("a")}, Path("ba"));
  EXPECT_EQ(ReadBytes(Path("ab")), ReadBytes(Path("ba")));
}

TEST_F(ProfileFileTest, NamesTheFirstSettingThatDiffers) {
  WriteProfile(Path("a"), settings_, {});
  const auto expect = [&](const auto& change, std::initializer_list<std::string_view> words) {
    ProfileSettings other = settings_;
    change(other);
    WriteProfile(Path("b"), other, {});
    const auto open = [&] { OpenProfile({Path("a"), Path("b")}); };
    ExpectInputError(open, {Path("a"), Path("b")});
    ExpectInputError(open, words);
    const auto extend = [&] { ProfileWriter(Path("b"), settings_, Existing::kExtend); };
    ExpectInputError(extend, words);
  };
  expect([](ProfileSettings& s) { s.ladder.scales[1] = 512.0f; }, {"ladder.scales", "0x1p+9"});
  expect([](ProfileSettings& s) { s.ladder.scales.pop_back(); }, {"ladder.scales"});
  expect([](ProfileSettings& s) { s.ladder.formats[0] = ParseFormat("bf16"); }, {"bf16", "fp16"});
  expect([](ProfileSettings& s) { s.ladder.roundings = {Rounding::kTowardZero}; }, {"rtz"});
  expect([](ProfileSettings& s) { s.ladder.subnormals = {Subnormals::kFlushToZero}; }, {"flush"});
  expect([](ProfileSettings& s) { s.tensors = "layer*"; }, {"tensors", "layer*"});
  expect([](ProfileSettings& s) { s.accumulation = Accumulation::kSumThenQuantize; }, {"sum"});
  expect([](ProfileSettings& s) { s.accumulate_steps = 4; }, {"accumulate_steps", "4"});
  expect([](ProfileSettings& s) { s.description["model"] = "b"; }, {"description.model"});
  expect([](ProfileSettings& s) { s.description["data"] = "c"; }, {"description.data"});
}

TEST_F(ProfileFileTest, DoesNotDependOnWhatWasEncodedBefore) {
  const std::vector<ProfileStep> others = StepsOf(kAccumulated, edges_);
  for (size_t i = steps_.size(); i-- > 0;) {
    EncodeStep(others[i % others.size()], edges_);
    const EncodedStep again = EncodeStep(steps_[i], edges_);
    EXPECT_EQ(again.bytes, encoded_[i].bytes);
    EXPECT_EQ(again.tensors, encoded_[i].tensors);
  }
}

}  // namespace
}  // namespace dlsim
