// SPDX-License-Identifier: Apache-2.0
// The parts of dlsim profile: shards, steps that change meanwhile, messages between ranks, and how
// the process was started.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "sim/profile/content_hash.h"
#include "sim/profile/finished_steps.h"
#include "sim/profile/launcher.h"
#include "sim/profile/rank_message.h"
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

TEST_F(StepEncoderTest, TakesEveryNthStep) {
  const TraceReader trace = OpenTrace({dir_.path()});
  StepEncoder encoder(trace, settings_, edges_, {1, 4}, 2);
  EXPECT_EQ(encoder.Next()->step, 1);
  EXPECT_EQ(encoder.Next()->step, 3);
  EXPECT_FALSE(encoder.Next());
  StepEncoder none(trace, settings_, edges_, {5, 4}, 2);
  EXPECT_FALSE(none.Next());
}

TEST_F(StepEncoderTest, EncodesWhatTheLibraryDoes) {
  const TraceReader trace = OpenTrace({dir_.path()});
  StepEncoder encoder(trace, settings_, edges_, {0, 4}, 1);
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
  StepEncoder encoder(trace, settings_, edges_, {0, 4}, 1);
  EXPECT_EQ(encoder.Next()->step, 0);
  EXPECT_EQ(encoder.Next()->step, 1);
  for (int i = 0; i < 2; ++i) ExpectInputError([&] { encoder.Next(); }, {Name(2)});
}

TEST_F(StepEncoderTest, AFileThatChangesWhileItIsReadIsAnError) {
  const TraceReader trace = OpenTrace({dir_.path()});
  StepEncoder encoder(trace, settings_, edges_, {0, 4}, 1);
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
  StepEncoder encoder(trace, settings_, edges_, {0, 4}, 1);
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

  std::vector<EncodedStep> Encode(StepRange range, size_t stride) const {
    const TraceReader trace = OpenTrace({dir_.path()});
    std::vector<EncodedStep> steps;
    EncodeSteps(trace, settings_, edges_, range, stride, {}, [&](size_t i, EncodedStep step) {
      EXPECT_EQ(i, range.begin + steps.size() * stride);
      steps.push_back(std::move(step));
    });
    return steps;
  }
};

TEST_F(EncodeStepsTest, AnyNumberOfThreadsEncodesAlike) {
  for (const size_t stride : {1u, 3u}) {
    const TraceReader trace = OpenTrace({dir_.path()});
    StepEncoder encoder(trace, settings_, edges_, {1, kSteps}, stride);
    const std::vector<EncodedStep> steps = Encode({1, kSteps}, stride);
    for (const EncodedStep& step : steps) {
      const std::optional<EncodedStep> expected = encoder.Next();
      EXPECT_EQ(step.step, expected->step);
      EXPECT_TRUE(step.tensors == expected->tensors && step.bytes == expected->bytes);
    }
    EXPECT_FALSE(encoder.Next());
  }
  EXPECT_TRUE(Encode({4, 4}, 1).empty());
  EXPECT_TRUE(Encode({5, 4}, 2).empty());
}

TEST_F(EncodeStepsTest, StepsBeforeAFailureAreGood) {
  dir_.Write(Name(9), "damaged");
  const TraceReader trace = OpenTrace({dir_.path()});
  size_t taken = 0;
  const auto take = [&](size_t, const EncodedStep&) { ++taken; };
  ExpectInputError(
      [&] {
        EncodeSteps(trace, settings_, edges_, {0, kSteps}, 1, {}, take);
      },
      {Name(9)});
  EXPECT_EQ(taken, 9);
}

TEST(RankMessages, CarryAStep) {
  const EncodedStep step = {-7, std::string("a\0b", 3), std::string("\xFF\0c", 3)};
  const EncodedStep got = StepOfMessage(StepMessage(step));
  EXPECT_EQ(got.step, step.step);
  EXPECT_EQ(got.tensors, step.tensors);
  EXPECT_EQ(got.bytes, step.bytes);
}

TEST(RankMessages, CarryAFailureWithItsExitCode) {
  const auto carry = [](const std::exception_ptr& failure) {
    try {
      StepOfMessage(FailureMessage(failure));
    } catch (const Error& error) {
      return std::pair(static_cast<int>(error.kind()), std::string(error.what()));
    }
    return std::pair(0, std::string());
  };
  EXPECT_EQ(carry(std::make_exception_ptr(InputError("f", "bad", "a", "b"))),
            std::pair(3, std::string("f: bad, expected a, got b")));
  EXPECT_EQ(carry(std::make_exception_ptr(UsageError("", "wrong"))),
            std::pair(2, std::string("wrong")));
  EXPECT_EQ(carry(std::make_exception_ptr(std::bad_alloc())),
            std::pair(70, std::string("out of memory")));
  EXPECT_EQ(carry(std::make_exception_ptr(std::runtime_error("odd"))),
            std::pair(70, std::string("odd")));
}

TEST(Launchers, AreKnownByTheirEnvironment) {
  using Variables = std::vector<std::pair<const char*, const char*>>;
  const std::vector<std::pair<Variables, Launch>> cases = {
      {{}, Launch::kAlone},
      {{{"OMPI_COMM_WORLD_SIZE", "1"}, {"PMIX_RANK", "0"}}, Launch::kAlone},
      {{{"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_RANK", "3"}}, Launch::kMpi},
      {{{"PMI_SIZE", "2"}}, Launch::kMpi},
      {{{"PMI_SIZE", "many"}}, Launch::kAlone},
      {{{"SLURM_STEP_NUM_TASKS", "1"}, {"PMIX_RANK", "0"}}, Launch::kAlone},
      {{{"SLURM_STEP_NUM_TASKS", "512"}, {"PMIX_RANK", "0"}}, Launch::kMpi},
      {{{"SLURM_STEP_NUM_TASKS", "512"}}, Launch::kSeveral},
      {{{"SLURM_NTASKS", "512"}, {"SLURM_ARRAY_TASK_COUNT", "64"}}, Launch::kAlone}};
  for (const auto& [variables, launch] : cases) {
    for (const auto& [name, value] : variables) setenv(name, value, 1);
    EXPECT_EQ(LaunchOfThisProcess(), launch) << testing::PrintToString(variables);
    for (const auto& [name, value] : variables) unsetenv(name);
  }
}

}  // namespace
}  // namespace dlsim::sim
