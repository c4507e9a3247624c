// SPDX-License-Identifier: Apache-2.0
// dlsim accumulate on real and on built traces: answers, files, errors (docs/accumulation.md).
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

using nlohmann::json;

json Study(const std::string& trace, const Arguments& more) {
  Arguments all = {"accumulate", trace, "--json", "-"};
  all.insert(all.end(), more.begin(), more.end());
  return SucceedJson(all);
}

const json& RunOf(const json& document, const std::string& name) {
  for (const json& run : document["runs"]) {
    if (run["name"] == name) return run;
  }
  ADD_FAILURE() << "no " << name;
  return document["runs"][0];
}

std::string Joined(const json& lines) {
  std::string text;
  for (const json& line : lines) text += line.get<std::string>() + "\n";
  return text;
}

float Bf16(float value) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xFFFF0000);
}

// A trace of one step whose ranks (or micro-steps) have these values of one tensor.
class RankTrace {
 public:
  explicit RankTrace(std::string part = "rank") : part_(std::move(part)) {}

  void Add(const std::vector<float>& values, const std::string& name = "w.grad") {
    dir_.Write("step-3." + part_ + "-" + std::to_string(10000 + ranks_).substr(1) + ".safetensors",
               BuildSafetensors({FloatTensor(name, values)}));
    ++ranks_;
  }
  std::string path() const { return dir_.path(); }

 private:
  TempDir dir_;
  std::string part_;
  int ranks_ = 0;
};

// Independent gradients; those exact in bf16 have errors of additions alone.
void AddIndependentRanks(int ranks, size_t elements, RankTrace& trace,
                         float (*gradient_of)(float) = Bf16) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (int r = 0; r < ranks; ++r) {
    std::vector<float> values(elements);
    for (float& value : values) value = gradient_of(normal(random));
    trace.Add(values);
  }
}

TEST(AccumulateCommand, TheErrorOfBf16RingsGrowsWithTheSquareRootOfRanks) {
  RankTrace trace;
  AddIndependentRanks(512, 512, trace);
  const json document = Study(trace.path(), {"--world-size", "512", "--elements", "512", "--format",
                                             "bf16", "--divide", "before"});
  const json& ring = RunOf(document, "bf16 ring before");
  EXPECT_NEAR(ring["exponent"].get<double>(), 0.5, 0.05);
  ASSERT_EQ(ring["by_ranks"].size(), 9u);
  EXPECT_EQ(ring["by_ranks"][8]["ranks"], 512);
  EXPECT_EQ(ring["by_ranks"][8]["error"], ring["error"]);
  const json& sums = RunOf(document, "bf16 all-to-all before");
  EXPECT_NEAR(sums["exponent"].get<double>(), 0, 0.05);
  EXPECT_LT(sums["error"].get<double>(), 0.003);
  EXPECT_GT(ring["error"].get<double>(), 10 * sums["error"].get<double>());
  // A tree adds ranks in pairs: its error grows with their logarithm.
  EXPECT_LT(RunOf(document, "bf16 tree before")["exponent"].get<double>(), 0.35);
  EXPECT_EQ(document["ranks"]["source"], "ranks");
  EXPECT_EQ(document["ranks"]["most"], 512);
  EXPECT_NEAR(document["ranks"]["noise"].get<double>(), 1, 0.1);  // of means that are all noise
  for (const json& run : document["runs"]) {
    EXPECT_LE(run["low"], run["error"]) << run;
    EXPECT_LE(run["error"], run["high"]) << run;
    EXPECT_LE(run["high"], run["certain"]) << run;
  }
}

// What 4 ranks have in common by chance is not what 512 would have.
TEST(AccumulateCommand, DrawnRanksAreAsIndependentAsTheRecordedOnes) {
  RankTrace trace;
  AddIndependentRanks(4, 512, trace);
  const json document = Study(trace.path(), {"--world-size", "512", "--elements", "512", "--format",
                                             "bf16", "--divide", "before"});
  EXPECT_NEAR(RunOf(document, "bf16 ring before")["exponent"].get<double>(), 0.5, 0.05);
  EXPECT_NEAR(document["ranks"]["noise"].get<double>(), 1, 0.1);
}

// With few recorded ranks, a value that comes again would be rounded the same way each time, so
// that errors would add up to several times those of distinct values.
TEST(AccumulateCommand, DrawnRanksHaveTheErrorsOfDistinctOnes) {
  RankTrace full, few;
  const auto gradient_of = [](float normal) { return 1.5f + normal; };
  AddIndependentRanks(512, 512, full, gradient_of);
  AddIndependentRanks(4, 512, few, gradient_of);
  const std::vector<std::string> options = {"--world-size", "512",    "--elements", "512",
                                            "--divide",     "before", "--scale",    "1"};
  const json truth = Study(full.path(), options), drawn = Study(few.path(), options);
  for (const char* name : {"fp16 ring before", "fp32 ring before"}) {
    const double ratio =
        RunOf(drawn, name)["error"].get<double>() / RunOf(truth, name)["error"].get<double>();
    EXPECT_GT(ratio, 0.7) << name;
    EXPECT_LT(ratio, 1.4) << name;
  }
}

// Equal gradients: 256 + 1 is 256, and half of 512 ranks are lost, in whatever order.
TEST(AccumulateCommand, ASumOfEqualGradientsStandsStill) {
  RankTrace trace("micro");
  trace.Add({0.5, 0.5});
  trace.Add({0.5, 0.5});
  const json document = Study(trace.path(), {"--world-size", "512", "--format", "bf16"});
  const json& ring = RunOf(document, "bf16 ring after");
  EXPECT_EQ(ring["error"], 0.5);
  EXPECT_EQ(ring["low"], 0.5);
  EXPECT_EQ(ring["high"], 0.5);
  EXPECT_EQ(RunOf(document, "bf16 tree after")["error"], 0.0);
  EXPECT_EQ(RunOf(document, "bf16 all-to-all before")["error"], 0.0);
  EXPECT_EQ(document["ranks"]["source"], "micro-steps");
  EXPECT_EQ(document["ranks"]["noise"], 0.0);
  EXPECT_EQ(document["tensors"][0]["tensor"], "w.grad");
  EXPECT_EQ(document["tensors"][0]["runs"][0]["worst_step"], 3);
}

// Micro-steps carry the division by their number: as ranks, their gradients are 40000.
TEST(AccumulateCommand, OverflowIsThatOfAllElementsAndOrders) {
  RankTrace trace("micro");
  std::vector<float> values(1000, 1.0f);
  values[777] = 20000;
  trace.Add(values);
  trace.Add(values);
  const auto study = [&](const Arguments& more) {
    Arguments all = {"--world-size", "2", "--format", "fp16", "--elements", "10", "--scale", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return Study(trace.path(), all);
  };
  const json document = study({});
  const json& after = RunOf(document, "fp16 ring after");
  EXPECT_EQ(after["overflow"], "every order");  // although the sample has not seen it
  EXPECT_EQ(after["overflowed"], 0.0);
  EXPECT_EQ(after["safe_scale"], 0.5);
  EXPECT_EQ(RunOf(document, "fp16 ring before")["overflow"], "no order");
  EXPECT_EQ(RunOf(document, "fp16 ring before")["safe_scale"], 1.0);
  EXPECT_NE(Joined(document["lines"]).find("divided after: in every order (safe up to 2^-1)"),
            std::string::npos);
  values[777] = -20000;
  trace.Add(values);
  const json three = Study(trace.path(), {"--world-size", "3", "--format", "fp16", "--scale", "1",
                                          "--divide", "after", "--elements", "1000"});
  EXPECT_EQ(RunOf(three, "fp16 ring after")["overflow"], "some orders");
  EXPECT_EQ(RunOf(three, "fp16 ring after")["overflowed"], 0.001);
  EXPECT_EQ(RunOf(three, "fp16 all-to-all after")["overflow"], "no order");
}

TEST(AccumulateCommand, AnswersForARealTrace) {
  const json document = Study(kAccumulated, {});
  EXPECT_EQ(document["schema"], "dlsim.accumulate/2");
  EXPECT_EQ(document["options"]["world_size"], 64);
  EXPECT_EQ(document["ranks"]["most"], 4);
  EXPECT_EQ(document["ranks"]["groups"], 2);
  EXPECT_EQ(document["runs"].size(), 19u);
  EXPECT_EQ(document["tensors"].size(), 20u);
  EXPECT_EQ(RunOf(document, "bf16 ring before")["scale"], 1.0);
  EXPECT_EQ(RunOf(document, "fp16 ring before")["scale"], 65536.0);
  const double ring = RunOf(document, "bf16 ring before")["error"];
  EXPECT_GT(ring, 3 * RunOf(document, "bf16 all-to-all before")["error"].get<double>());
  EXPECT_LT(RunOf(document, "fp32 ring before")["error"].get<double>(), 1e-6);
  const std::string report = Succeed({"accumulate", kAccumulated, "--top", "1"});
  EXPECT_TRUE(report.starts_with("bf16 ring before over 64 ranks: error ")) << report;
  EXPECT_NE(report.find("4 micro-steps taken as ranks"), std::string::npos) << report;
  EXPECT_EQ(Succeed({"accumulate", kAccumulated, "--quiet"}), "");
}

TEST(AccumulateCommand, StepsAreTakenAsRanksWhereThereIsNothingElse) {
  const json document = Study(kSingle, {"--world-size", "8", "--format", "bf16"});
  EXPECT_EQ(document["ranks"]["source"], "steps");
  EXPECT_GT(document["ranks"]["nonfinite"], 0);
  EXPECT_EQ(document.dump().find("nan"), std::string::npos);
}

TEST(AccumulateCommand, LevelsAreCerebrasSums) {
  const json document =
      Study(kAccumulated, {"--level", "0", "--level", "1", "--level", "2", "--world-size", "32"});
  ASSERT_EQ(document["runs"].size(), 3u);
  const json& level0 = RunOf(document, "level 0 cb16");
  EXPECT_EQ(level0["level"], 0);
  EXPECT_EQ(level0["algorithm"], nullptr);
  EXPECT_EQ(level0["error"], RunOf(document, "level 1 cb16")["error"]);
  EXPECT_GT(RunOf(document, "level 2 cb16")["error"], level0["error"]);
}

TEST(AccumulateCommand, ExpectationsAreAboutRuns) {
  const auto with = [](const std::string& expectation) {
    return Arguments{"accumulate", kAccumulated, "--quiet", "--expect", expectation};
  };
  Succeed(with("fp32*:error<1e-6"));
  ExpectFailure(with("bf16 ring bef*:error<1e-6"), 1, {"bf16 ring before: error is"});
  ExpectFailure(with("nope:error<1"), 2, {"no such reduction", "'nope'"});
  ExpectFailure(with("errors<1"), 2, {"unknown figure", "error"});
}

// The format of a configuration's sums over ranks takes the place of the default ones; options win.
TEST(AccumulateCommand, AConfigurationDecidesTheFormat) {
  const TempDir dir;
  const std::string config =
      dir.Write("ds.json", R"({"bf16": {"enabled": true}, "communication_data_type": "fp16"})");
  const Arguments with = {"accumulate", kAccumulated, "--config", config, "--json", "-"};
  const auto formats = [&](Arguments more) {
    more.insert(more.begin(), with.begin(), with.end());
    std::set<std::string> found;
    const json document = SucceedJson(more);
    for (const json& run : document["runs"]) found.insert(run["format"]);
    return found;
  };
  EXPECT_EQ(formats({}), std::set<std::string>{"fp16"});
  EXPECT_EQ(formats({"--format", "fp32"}), std::set<std::string>{"fp32"});
  EXPECT_EQ(formats({"--level", "1"}), std::set<std::string>{"cb16"});
  EXPECT_EQ(SucceedJson(with)["options"]["config"]["updates"]["reduce"], "fp16");
  EXPECT_EQ(SucceedJson({"accumulate", kAccumulated, "--json", "-"})["options"]["config"], nullptr);
}

// The number of ranks, too, and the answer says where it comes from.
TEST(AccumulateCommand, AConfigurationSaysTheNumberOfRanks) {
  const TempDir dir;
  const auto study = [&](const std::string& sizes, const Arguments& more = {}) {
    const std::string config =
        dir.Write("ds.json", R"({"bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 2, )"
                             R"("gradient_accumulation_steps": 1, "train_batch_size": )" +
                                 sizes + "}");
    Arguments all = {"--config",    config, "--format", "bf16",
                     "--algorithm", "tree", "--divide", "before"};
    all.insert(all.end(), more.begin(), more.end());
    return Study(kAccumulated, all);
  };
  const json eight = study("16");
  EXPECT_EQ(eight["options"]["world_size"], 8);
  EXPECT_EQ(eight["options"]["config"]["ranks"]["count"], 8);
  EXPECT_EQ(eight["lines"].back().get<std::string>().find(
                "8 ranks: train_batch_size 16 / train_micro_batch_size_per_gpu 2 / "
                "gradient_accumulation_steps 1 of "),
            0u)
      << eight["lines"].back();
  const json asked = study("16", {"--world-size", "4"});
  EXPECT_EQ(asked["options"]["world_size"], 4);
  EXPECT_EQ(Joined(asked["lines"]).find("train_batch_size"), std::string::npos);
  // What cannot be shown is said.
  const json one = study("2"), many = study("2048");
  EXPECT_EQ(one["options"]["world_size"], 64);
  EXPECT_NE(Joined(one["lines"]).find(", which reduces nothing; shown for 64 ranks."),
            std::string::npos);
  EXPECT_EQ(many["options"]["world_size"], 512);
  EXPECT_NE(Joined(many["lines"]).find("; shown for 512."), std::string::npos);
  EXPECT_EQ(study("\"auto\"")["options"]["config"]["ranks"], nullptr);
}

TEST(AccumulateCommand, CsvHasARowPerStepTensorAndReduction) {
  const auto rows = Lines(Succeed({"accumulate", kAccumulated, "--csv", "-"}));
  ASSERT_EQ(rows.size(), 1u + 2 * 20 * 19);
  EXPECT_TRUE(rows[0].starts_with("run,step,tensor,elements,sampled,")) << rows[0];
  EXPECT_TRUE(rows[1].starts_with("bf16 ring before,1,")) << rows[1];
}

TEST(AccumulateErrors, AreOneLine) {
  const auto fails = [](const Arguments& more, const Arguments& words) {
    Arguments all = {"accumulate", kAccumulated};
    all.insert(all.end(), more.begin(), more.end());
    ExpectFailure(all, 2, words);
  };
  fails({"--world-size", "1"}, {"--world-size: out of range", "2 to 512", "'1'"});
  fails({"--world-size", "513"}, {"--world-size: out of range"});
  fails({"--algorithm", "rings"}, {"--algorithm", "ring", "'rings'"});
  fails({"--divide", "never"}, {"--divide", "before, after, sqrt"});
  fails({"--level", "3"}, {"--level", "0, 1, 2", "'3'"});
  fails({"--format", "fp61"}, {"--format: unknown name", "expected fp32, fp16, ", "'fp61'"});
  fails({"--ranks", "sum"}, {"not expected: --ranks"});  // each is looked at by itself
  fails({"--config-kind", "deepspeed"}, {"--config-kind: needs --config"});
  fails({"--format", "e8m11"}, {"--format: too many mantissa bits", "at most 10"});
  fails({"--format", "fp32", "--level", "2"}, {"--format: levels need a format"});
  fails({"--elements", "0"}, {"--elements"});
  fails({"--scale", "0"}, {"--scale: out of range"});
  fails({"--json", "-", "--csv", "-"}, {"--csv", "--json"});
  ExpectFailure({"accumulate"}, 2, {"TRACE is required"});
  ExpectFailure({"accumulate", "/nonexistent"}, 3, {"/nonexistent: cannot be opened"});
  ExpectFailure({"accumulate", kSingle, "--tensors", "nope*"}, 3, {"no tensor matches"});
}

TEST(AccumulateErrors, TensorsMustFitAndRanksBeSeveral) {
  RankTrace one("micro");
  one.Add({1, 2});
  ExpectFailure({"accumulate", one.path()}, 3, {"nothing to reduce", "two ranks"});
  const TempDir steps, results;
  steps.Write("step-1.safetensors", BuildSafetensors({FloatTensor("w.grad", {1, 2})}));
  steps.Write("step-2.safetensors", BuildSafetensors({FloatTensor("w.grad", {1, 2, 3})}));
  ExpectFailure({"accumulate", steps.path(), "--json", results.path() + "/r.json"}, 3,
                {"step-2.safetensors: size of 'w.grad' differs", "2 elements"});
  EXPECT_TRUE(std::filesystem::is_empty(results.path()));
}

}  // namespace
}  // namespace dlsim
