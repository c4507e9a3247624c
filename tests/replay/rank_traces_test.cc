// SPDX-License-Identifier: Apache-2.0
// Traces of several data-parallel ranks are read as one gradient: their float32 sum or mean in
// rank order, wherever values are read.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "dlsim/measure_step.h"
#include "dlsim/trace.h"
#include "tests/support/rank_files.h"
#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

using nlohmann::json;

// What every rank is to record in place of one tensor; nothing where a rank lacks it.
using Split = std::function<std::vector<Floats>(const TraceTensor& tensor, const Floats& values)>;

// A real trace as several ranks might have recorded it, and what a reader should see,
// recorded without ranks.
class SplitTrace {
 public:
  SplitTrace(const std::string& source, RankReduction reduction, const Split& split) {
    const TraceReader reader = OpenTrace({source});
    for (size_t i = 0; i < reader.step_count(); ++i) {
      const TraceStep step = reader.Load(i);
      for (const Recording& recording : step.recordings) {
        Write(step.step, recording, reduction, split);
      }
    }
  }

  std::string ranks() const { return ranks_.path(); }
  std::string expected() const { return expected_.path(); }

 private:
  void Write(int64_t step, const Recording& recording, RankReduction reduction,
             const Split& split) {
    std::map<size_t, std::vector<BuiltTensor>> of_rank;
    std::vector<BuiltTensor> expected;
    for (const TraceTensor& tensor : recording.tensors) {
      const std::vector<Floats> parts = split(tensor, ValuesOf(recording, tensor));
      for (size_t r = 0; r < parts.size(); ++r) {
        of_rank[r].push_back({tensor.info->name, "F32", tensor.info->shape, FloatBytes(parts[r])});
      }
      const Floats values = tensor.info->role == Role::kGrad ? Reduced(parts, reduction)
                                                             : parts.front();  // see Parts
      expected.push_back({tensor.info->name, "F32", tensor.info->shape, FloatBytes(values)});
    }
    for (const auto& [rank, tensors] : of_rank) {
      ranks_.Write(StepFile(step, static_cast<int64_t>(rank), recording.micro),
                   BuildSafetensors(tensors));
    }
    expected_.Write(StepFile(step, -1, recording.micro), BuildSafetensors(expected));
  }

  TempDir ranks_, expected_;
};

// Random parts of gradients, whose sum rounds; rank 0 alone has the activation gradients.
std::vector<Floats> Parts(const TraceTensor& tensor, const Floats& values) {
  if (tensor.info->role == Role::kActGrad) return {values};
  static std::mt19937 random(7);
  std::uniform_real_distribution<float> share(-1, 2);
  std::vector<Floats> parts(3, values);
  for (size_t i = 0; i < values.size(); ++i) {
    for (Floats& part : parts) part[i] *= share(random);
  }
  return parts;
}

json RunsOf(Arguments arguments) {
  arguments.insert(arguments.begin(), "replay");
  arguments.insert(arguments.end(), {"--json", "-"});
  return SucceedJson(arguments)["runs"];
}

const Arguments kRuns = {"--format", "fp16",  "--format", "fp8-e4m3",
                         "--policy", "torch", "--policy", "mxnet"};

Arguments With(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(RankTraces, ARealTraceInPartsReplaysAsItsMean) {
  for (const std::string& source : {kSingle, kAccumulated}) {
    const SplitTrace trace(source, RankReduction::kMean, Parts);
    EXPECT_EQ(RunsOf(With({trace.ranks()}, kRuns)), RunsOf(With({trace.expected()}, kRuns)));
    for (const char* accumulate : {"sum-first", "quantize-first"}) {
      const Arguments how = {"--policy", "static", "--accumulate", accumulate};
      EXPECT_EQ(RunsOf(With({trace.ranks()}, how)), RunsOf(With({trace.expected()}, how)));
    }
  }
}

TEST(RankTraces, ARealTraceInPartsReplaysAsItsSum) {
  const SplitTrace trace(kAccumulated, RankReduction::kSum, Parts);
  const json expected = RunsOf(With({trace.expected()}, kRuns));
  EXPECT_EQ(RunsOf(With({trace.ranks(), "--ranks", "sum"}, kRuns)), expected);
  EXPECT_NE(RunsOf(With({trace.ranks(), "--ranks", "mean"}, kRuns)), expected);
}

TEST(RankTraces, StochasticRoundingSeesTheSameElements) {
  const SplitTrace trace(kAccumulated, RankReduction::kMean, Parts);
  const Arguments how = {"--policy", "static", "--rounding", "sr", "--seed", "3"};
  EXPECT_EQ(RunsOf(With({trace.ranks()}, how)), RunsOf(With({trace.expected()}, how)));
}

TEST(RankTraces, EveryCommandReadsTheReducedValues) {
  const SplitTrace trace(kAccumulated, RankReduction::kMean, Parts);
  EXPECT_EQ(Succeed({"sweep", trace.ranks(), "--csv", "-"}),
            Succeed({"sweep", trace.expected(), "--csv", "-"}));
  EXPECT_EQ(SucceedJson({"replay", trace.ranks(), "--summaries", "-"})["recordings"],
            SucceedJson({"replay", trace.expected(), "--summaries", "-"})["recordings"]);
  const TraceStep step = OpenTrace({trace.ranks()}).Load(0);
  const TraceStep expected_step = OpenTrace({trace.expected()}).Load(0);
  EXPECT_EQ(SumGradients(step), SumGradients(expected_step));
}

TEST(RankTraces, ARankOfZerosAddsNothing) {
  const SplitTrace trace(kSingle, RankReduction::kSum,
                         [](const TraceTensor& tensor, const Floats& values) {
                           std::vector<Floats> parts = {values};
                           if (tensor.info->role == Role::kGrad)
                             parts.push_back(Floats(values.size()));
                           return parts;
                         });
  EXPECT_EQ(RunsOf(With({trace.ranks(), "--ranks", "sum"}, kRuns)), RunsOf(With({kSingle}, kRuns)));
}

TEST(RankTraces, TheMeanOfEqualRanksIsTheirGradient) {
  const auto four = [](const TraceTensor&, const Floats& values) {
    return std::vector<Floats>(4, values);
  };
  const SplitTrace trace(kSingle, RankReduction::kMean, four);
  const Arguments gradients = With({"--tensors", "*.grad"}, kRuns);
  EXPECT_EQ(RunsOf(With({trace.ranks()}, gradients)), RunsOf(With({kSingle}, gradients)));
}

TEST(RankTraces, EffectiveStepsGroupStepsAndNotRanks) {
  const SplitTrace trace(kSingle, RankReduction::kMean, Parts);
  const Arguments how = With({"--grad-accum-steps", "3"}, kRuns);
  EXPECT_EQ(RunsOf(With({trace.ranks()}, how)), RunsOf(With({trace.expected()}, how)));
}

TEST(RankTraces, InfoTellsFilesAndRanks) {
  const SplitTrace trace(kAccumulated, RankReduction::kMean, Parts);
  const json info = SucceedJson({"info", trace.ranks(), "--ranks", "sum", "--json"});
  ASSERT_EQ(info["steps"].size(), 24u);  // 2 steps of 4 micro-steps of 3 ranks
  EXPECT_EQ(info["steps"][4]["rank"], 1);
  EXPECT_EQ(info["steps"][4]["micro"], 1);
  EXPECT_EQ(info["trace"]["description"]["ranks"], "3");
  EXPECT_EQ(info["trace"]["description"]["rank_reduction"], "sum");
  const std::string text = Succeed({"info", trace.ranks()});
  EXPECT_NE(text.find("rank_reduction: mean\nranks: 3\n"), std::string::npos) << text;
  const std::string report = Succeed({"replay", trace.ranks(), "--policy", "static"});
  EXPECT_NE(report.find("note: each gradient is the mean of 3 data-parallel ranks\n"),
            std::string::npos)
      << report;
  const json single = SucceedJson({"info", kSingle, "--json"});
  EXPECT_FALSE(single["trace"]["description"].contains("ranks"));
}

TEST(RankTraces, ProfilesTellTheReduction) {
  const SplitTrace trace(kAccumulated, RankReduction::kMean, Parts);
  TempDir dir;
  const std::string mean = dir.path() + "/mean.profile", sum = dir.path() + "/sum.profile";
  Succeed({"profile", trace.ranks(), "-o", mean, "--quiet"});
  Succeed({"profile", trace.ranks(), "-o", sum, "--quiet", "--ranks", "sum"});
  const std::string report = Succeed({"replay", mean, "--policy", "static"});
  EXPECT_NE(report.find("note: each gradient is the mean of 3 data-parallel ranks\n"),
            std::string::npos)
      << report;
  ExpectFailure({"replay", mean, "--ranks", "sum"}, 2,
                {"--ranks: the profile was made otherwise, expected mean, got sum"});
  const std::vector<std::vector<std::string>> readers = {{"replay"}, {"info"}, {"diff", mean}};
  for (std::vector<std::string> reader : readers) {
    reader.insert(reader.end(), {sum, "--ranks", "mean"});
    ExpectFailure(reader, 2, {"--ranks: the profile was made otherwise, expected sum, got mean"});
  }
  EXPECT_EQ(RunsOf(With({sum, "--ranks", "sum"}, kRuns)), RunsOf(With({sum}, kRuns)));
}

TEST(RankTraces, AnUnknownReductionIsRefused) {
  ExpectFailure({"replay", kSingle, "--ranks", "median"}, 2, {"--ranks", "mean", "'median'"});
}

TEST(RankTraces, OtherTracesAreNotTouched) {
  EXPECT_EQ(RunsOf(With({kSingle, "--ranks", "sum"}, kRuns)), RunsOf(With({kSingle}, kRuns)));
}

TEST(RankTraces, ThreadsCannotBeSeen) {
  TempDir dir;
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 1e-4f);
  for (int64_t rank = 0; rank < 3; ++rank) {
    Floats values(300'001);
    for (float& value : values) value = normal(random);
    dir.Write(StepFile(0, rank, -1), BuildSafetensors({FloatTensor("w.grad", values)}));
  }
  const auto runs_with = [&](const char* threads, const Arguments& how) {
    setenv("OMP_NUM_THREADS", threads, 1);
    const json runs = RunsOf(With({dir.path()}, how));
    unsetenv("OMP_NUM_THREADS");
    return runs;
  };
  const json one = runs_with("1", kRuns);
  EXPECT_EQ(runs_with("4", kRuns), one);
}

}  // namespace
}  // namespace dlsim
