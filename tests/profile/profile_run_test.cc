// SPDX-License-Identifier: Apache-2.0
// The parts of dlsim profile: shards, and steps that change meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "sim/profile/content_hash.h"
#include "sim/profile/finished_steps.h"
#include "sim/profile/step_encoder.h"
#include "tests/support/trace_builder.h"

namespace dlsim::sim {
namespace {

namespace fs = std::filesystem;

TEST(ProfileShards, AreNearlyEqualAndCoverEachStepOnce) {
  for (const size_t steps : {0u, 1u, 7u, 64u, 1000u}) {
    for (const uint64_t parts : {1u, 3u, 7u, 64u, 1'000'000'000u}) {
      size_t end = 0;
      for (uint64_t i = 0; i < std::min<uint64_t>(parts, 2000); ++i) {
        const StepRange range = ShardOf(steps, i, parts);
        EXPECT_EQ(range.begin, end);
        EXPECT_LE(range.end - range.begin, steps / parts + 1);
        EXPECT_GE(range.end - range.begin, steps / parts);
        end = range.end;
      }
      EXPECT_EQ(ShardOf(steps, parts - 1, parts).end, steps);
    }
  }
}

class StepEncoderTest : public testing::Test {
 protected:
  StepEncoderTest() {
    for (int step = 0; step < 4; ++step) {
      dir_.Write(Name(step), BuildSafetensors({FloatTensor("w.grad", {1, 2, 3})}));
    }
    settings_.ladder.formats = {ParseFormat("fp16")};
    settings_.ladder.roundings = {Rounding::kNearestEven};
    settings_.ladder.subnormals = {Subnormals::kKeep};
    settings_.ladder.scales = {1};
  }

  static std::string Name(int step) { return "step-" + std::to_string(step) + ".safetensors"; }
  std::string Path(int step) const { return dir_.path() + "/" + Name(step); }

  TempDir dir_;
  ProfileSettings settings_;
  HistogramEdges edges_{{}};
};

TEST_F(StepEncoderTest, TakesTheStepsOfTheRange) {
  const TraceReader trace = OpenTrace({dir_.path()});
  StepEncoder encoder(trace, settings_, edges_, {1, 3});
  EXPECT_EQ(encoder.Next()->step, 1);
  EXPECT_EQ(encoder.Next()->step, 2);
  EXPECT_FALSE(encoder.Next());
  StepEncoder none(trace, settings_, edges_, {5, 4});
  EXPECT_FALSE(none.Next());
}

TEST_F(StepEncoderTest, EncodesWhatTheLibraryDoes) {
  const TraceReader trace = OpenTrace({dir_.path()});
  StepEncoder encoder(trace, settings_, edges_, {0, 4});
  for (size_t i = 0; i < 4; ++i) {
    ProfileStep profiled = ProfileOf(trace.Load(i), edges_, {});
    profiled.files[0].content = ContentHash(Path(static_cast<int>(i)));
    const EncodedStep expected = EncodeStep(profiled, edges_);
    const std::optional<EncodedStep> step = encoder.Next();
    EXPECT_EQ(step->step, expected.step);
    EXPECT_TRUE(step->tensors == expected.tensors && step->bytes == expected.bytes);
  }
}

TEST_F(StepEncoderTest, AStepBeforeAFailureIsGood) {
  dir_.Write(Name(2), "damaged");
  const TraceReader trace = OpenTrace({dir_.path()});
  StepEncoder encoder(trace, settings_, edges_, {0, 4});
  EXPECT_EQ(encoder.Next()->step, 0);
  EXPECT_EQ(encoder.Next()->step, 1);
  for (int i = 0; i < 2; ++i) ExpectInputError([&] { encoder.Next(); }, {Name(2)});
}

TEST_F(StepEncoderTest, AFileThatChangesWhileItIsReadIsAnError) {
  const TraceReader trace = OpenTrace({dir_.path()});
  StepEncoder encoder(trace, settings_, edges_, {0, 4});
  fs::last_write_time(Path(1), fs::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_EQ(encoder.Next()->step, 0);
  ExpectInputError([&] { encoder.Next(); }, {Name(1), "changed while it was read"});
}

TEST_F(StepEncoderTest, ReplayNoticesAFileThatChangesWhileItIsRead) {
  const TraceReader trace = OpenTrace({dir_.path()});
  const TraceSource source(trace, 1);
  const std::unique_ptr<GradientStep> good = source.Load(0, StepNeeds::kTensors);
  const std::unique_ptr<GradientStep> step = source.Load(1, StepNeeds::kTensors);
  fs::last_write_time(Path(1), fs::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_NO_THROW(good->Measure({}, {}));
  ExpectInputError([&] { step->Measure({}, {}); }, {Name(1), "changed while it was read"});
  ExpectInputError([&] { step->Spreads(); }, {Name(1), "changed while it was read"});
  ExpectInputError([&] { step->Totals(edges_, {}); }, {Name(1), "changed while it was read"});
}

TEST_F(StepEncoderTest, AFileThatIsGoneIsAnError) {
  const TraceReader trace = OpenTrace({dir_.path()});
  fs::remove(Path(1));
  StepEncoder encoder(trace, settings_, edges_, {0, 4});
  EXPECT_EQ(encoder.Next()->step, 0);
  ExpectInputError([&] { encoder.Next(); }, {Name(1)});
}

// A program that links dlsim may write a profile without saying what its files held.
TEST_F(StepEncoderTest, AFinishedStepWhoseFileIsNotKnownIsReadAgain) {
  const TraceReader trace = OpenTrace({dir_.path()});
  const TraceSource source(trace, 1);
  std::vector<ProfileWriter::Done> done;
  for (size_t i = 0; i < 3; ++i) {
    done.push_back({static_cast<int64_t>(i), StateOf(source.files(i)).files});
    done.back().files[0].content = ContentHash(Path(static_cast<int>(i)));
  }
  const int64_t later = StateOf(source.files(3)).changed_at[0];
  EXPECT_EQ(FindResumption(done, later, source, {0, 4}, Gone::kForget).kept, 3u);
  done[1].files[0].content = 0;
  EXPECT_EQ(FindResumption(done, later, source, {0, 4}, Gone::kForget).kept, 1u);
}

// More work than one thread does.
class EncodeStepsTest : public StepEncoderTest {
 protected:
  static constexpr int kSteps = 24;

  EncodeStepsTest() {
    const std::vector<float> values(50000, 0x1p-20f);
    for (int step = 0; step < kSteps; ++step) {
      dir_.Write(Name(step), BuildSafetensors({FloatTensor("w.grad", values),
                                               FloatTensor("b.grad", {1.0f + float(step)})}));
    }
  }

  std::vector<EncodedStep> Encode(StepRange range) const {
    const TraceReader trace = OpenTrace({dir_.path()});
    std::vector<EncodedStep> steps;
    EncodeSteps(trace, settings_, edges_, range, {}, [&](size_t i, EncodedStep step) {
      EXPECT_EQ(i, range.begin + steps.size());
      steps.push_back(std::move(step));
    });
    return steps;
  }
};

TEST_F(EncodeStepsTest, AnyNumberOfThreadsEncodesAlike) {
  const TraceReader trace = OpenTrace({dir_.path()});
  StepEncoder encoder(trace, settings_, edges_, {1, kSteps});
  const std::vector<EncodedStep> steps = Encode({1, kSteps});
  for (const EncodedStep& step : steps) {
    const std::optional<EncodedStep> expected = encoder.Next();
    EXPECT_EQ(step.step, expected->step);
    EXPECT_TRUE(step.tensors == expected->tensors && step.bytes == expected->bytes);
  }
  EXPECT_FALSE(encoder.Next());
  EXPECT_TRUE(Encode({4, 4}).empty());
  EXPECT_TRUE(Encode({5, 4}).empty());
}

TEST_F(EncodeStepsTest, StepsBeforeAFailureAreGood) {
  dir_.Write(Name(9), "damaged");
  const TraceReader trace = OpenTrace({dir_.path()});
  size_t taken = 0;
  const auto take = [&](size_t, const EncodedStep&) { ++taken; };
  ExpectInputError(
      [&] {
        EncodeSteps(trace, settings_, edges_, {0, kSteps}, {}, take);
      },
      {Name(9)});
  EXPECT_EQ(taken, 9);
}

}  // namespace
}  // namespace dlsim::sim
