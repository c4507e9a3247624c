// SPDX-License-Identifier: Apache-2.0
// The command dlsim sweep: its results against those of dlsim replay, its files, its errors.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dlsim/profile_file.h"
#include "sim/base/number.h"
#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"

namespace dlsim::sim {
namespace {

using nlohmann::json;

const std::string kDiabetes = kTraces + "reg-diabetes-cut";

Arguments Joined(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Expects the keys that both have to be equal, sums to 1e-12.
void ExpectSameSummary(const json& replayed, const json& swept) {
  for (const auto& [key, value] : replayed.items()) {
    if (!swept.contains(key)) continue;
    if (value.is_number_float()) {
      const double a = value.get<double>(), b = swept[key].get<double>();
      EXPECT_LE(std::fabs(a - b), 1e-12 * std::fabs(a)) << key;
    } else {
      EXPECT_EQ(value, swept[key]) << key;
    }
  }
}

std::string SettingText(const json& value) {
  return value.is_boolean() ? (value.get<bool>() ? "true" : "false") : value.dump();
}

TEST(SweepCommand, EachRunIsThatOfAReplay) {
  const json document =
      SucceedJson({"sweep", kDiabetes, "--format", "fp16", "--format", "bf16", "--policy", "torch",
                   "--policy", "cerebras", "--vary", "init_scale=2^4,2^30", "--vary",
                   "growth_interval=2,7", "--vary", "rounding=rne,rtz", "--json", "-"});
  EXPECT_EQ(document["schema"], "dlsim.sweep/1");
  EXPECT_EQ(document["trace"]["steps"], 25);
  ASSERT_EQ(document["runs"].size(), 2u * 2 * (4 + 2));
  for (const json& run : document["runs"]) {
    Arguments arguments = {"replay",      kDiabetes,    "--format",      run["format"], "--policy",
                           run["policy"], "--rounding", run["rounding"], "--json",      "-"};
    for (const char* key : {"init_scale", "growth_interval", "initial_loss_scale"}) {
      if (!run["params"].contains(key)) continue;
      arguments.push_back("--set");
      arguments.push_back(std::string(key) + "=" + SettingText(run["params"][key]));
    }
    SCOPED_TRACE(run.dump());
    const json replayed = SucceedJson(arguments)["runs"][0];
    EXPECT_EQ(replayed["params"], run["params"]);
    EXPECT_GE(run["summary"].size(), 25u);
    EXPECT_EQ(run["summary"]["exact"], true);
    ExpectSameSummary(replayed["summary"], run["summary"]);
  }
}

TEST(SweepCommand, CsvHasOneRowPerRun) {
  const Arguments sweep = {
      "sweep", kSingle, "--policy", "torch", "--vary", "init_scale=2^0..2^9", "--format", "fp16"};
  const std::vector<std::string> lines = Lines(Succeed(Joined(sweep, {"--csv", "-"})));
  ASSERT_EQ(lines.size(), 11u);
  EXPECT_TRUE(lines[0].starts_with("run,format,policy,rounding,init_scale,steps,skipped_steps,"));
  const json document = SucceedJson(Joined(sweep, {"--json", "-"}));
  for (size_t r = 0; r < 10; ++r) {
    const std::string head = std::to_string(r) + ",fp16,torch,rne,2^" + std::to_string(r) + ",13," +
                             document["runs"][r]["summary"]["skipped_steps"].dump() + ",";
    EXPECT_TRUE(lines[r + 1].starts_with(head)) << lines[r + 1];
    EXPECT_EQ(std::ranges::count(lines[r + 1], ','), std::ranges::count(lines[0], ','));
  }
}

TEST(SweepCommand, NothingBeatsTheParetoFront) {
  const json document = SucceedJson({"sweep", kTraces + "cnn-digits", "--format", "fp16", "--vary",
                                     "initial_loss_scale=2^-10..2^40", "--vary",
                                     "steps_per_increase=1,5,100", "--json", "-"});
  const json& runs = document["runs"];
  const auto skipped = [&](size_t r) { return runs[r]["summary"]["skipped_steps"].get<int>(); };
  const auto energy = [&](size_t r) {
    return runs[r]["summary"]["mean_energy_lost"].get<double>();
  };
  ASSERT_FALSE(document["pareto"].empty());
  for (const json& index : document["pareto"]) {
    const auto on_front = index.get<size_t>();
    for (size_t r = 0; r < runs.size(); ++r) {
      const bool no_worse = skipped(r) <= skipped(on_front) && energy(r) <= energy(on_front);
      const bool better = skipped(r) < skipped(on_front) || energy(r) < energy(on_front);
      EXPECT_FALSE(no_worse && better) << r << " beats " << on_front;
    }
  }
}

TEST(SweepCommand, ReportsTheBestTheFrontAndTheRefused) {
  const std::string text =
      Succeed({"sweep", kSingle, "--policy", "torch", "--vary", "growth_factor=0.5,2", "--vary",
               "init_scale=2^8,2^16", "--format", "fp16", "--top", "1"});
  for (const char* words :
       {"trace: ", "2 runs", "refused: 2 points of torch: AssertionError: The growth factor",
        "best:", "format policy", "Pareto front", "fp16 torch"}) {
    EXPECT_NE(text.find(words), std::string::npos) << words << " not in " << text;
  }
}

TEST(SweepCommand, StartsWithTheVerdictOfReplay) {
  const Arguments formats = {"--format", "bf16", "--format", "fp16"};
  for (const std::string trace : {"cnn-digits", "lm-trouble-cut"}) {
    const json replayed =
        SucceedJson(Joined({"replay", kTraces + trace, "--json", "-"}, formats))["verdict"];
    json swept = SucceedJson(Joined({"sweep", kTraces + trace, "--json", "-"}, formats))["verdict"];
    EXPECT_EQ(swept["lines"], replayed["lines"]);
    EXPECT_EQ(swept["looked_at"], replayed["looked_at"]);
    const std::string report = Succeed(Joined({"replay", kTraces + trace}, formats));
    const std::string lines = report.substr(0, report.find("\n\n"));
    EXPECT_TRUE(Succeed(Joined({"sweep", kTraces + trace}, formats)).starts_with(lines + "\n\n"));
  }
}

TEST(SweepCommand, ASetOfRoundingsHasAVerdictEach) {
  const Arguments sweep = {"sweep",  kTraces + "cnn-digits", "--format", "fp16",
                           "--vary", "rounding=rne,rtz"};
  const json document = SucceedJson(Joined(sweep, {"--json", "-"}));
  EXPECT_EQ(document["verdict"]["rounding"], "rne");
  ASSERT_EQ(document["verdicts_of_other_roundings"].size(), 1u);
  EXPECT_EQ(document["verdicts_of_other_roundings"][0]["rounding"], "rtz");
  EXPECT_TRUE(Succeed(sweep).starts_with("rounding rne:\nfp16  trains"));
}

TEST(SweepCommand, ASortWithoutWindowsHasNoVerdict) {
  const Arguments sweep = {"sweep", kSingle, "--format", "fp16", "--sort", "skipped"};
  EXPECT_TRUE(Succeed(sweep).starts_with("No verdict: "));
  EXPECT_EQ(SucceedJson(Joined(sweep, {"--json", "-"}))["verdict"], json());
}

// The words of the lines of a table that begin with these.
std::vector<std::string> TableRows(const std::string& report, const std::string& begin) {
  std::vector<std::string> rows;
  for (const std::string& line : Lines(report)) {
    std::string words;
    for (const char c : line) {
      if (c != ' ' || !words.ends_with(' ')) words += c;
    }
    if (words.starts_with(" " + begin)) rows.push_back(words.substr(1));
  }
  return rows;
}

TEST(SweepCommand, RunsThatTieShareARowAndHeadroomIsPreferred) {
  const std::string report =
      Succeed({"sweep", kTraces + "cnn-digits", "--policy", "torch", "--vary",
               "init_scale=2^-12..2^18", "--vary", "growth_interval=100,200,300", "--top", "4"});
  const std::string tail = " 100 to 300 (100) 0/45 0 ";
  const std::vector<std::string> rows = TableRows(report, "fp16 torch");
  ASSERT_EQ(rows.size(), 3u) << report;  // two of them among the best
  EXPECT_TRUE(rows[0].starts_with("fp16 torch 2^-9 to 2^16 (2^14)" + tail)) << report;
  EXPECT_TRUE(rows[0].ends_with(" 78")) << report;
  EXPECT_TRUE(rows[2].starts_with("fp16 torch 2^-9 to 2^16 (2^14)" + tail)) << report;
  for (const std::string& row : TableRows(report, "bf16 torch")) {
    EXPECT_TRUE(row.starts_with("bf16 torch 2^-12 to 2^18 (2^-12)" + tail)) << report;
  }
}

TEST(SweepCommand, ARowNamesOnlyWhatTies) {
  const std::string report =
      Succeed({"sweep", kTraces + "cnn-digits", "--policy", "static", "--format", "fp16", "--vary",
               "loss_scale=1,2^4,2^30,2^8,2^31", "--top", "2"});
  const std::vector<std::string> rows = TableRows(report, "fp16 static");
  ASSERT_EQ(rows.size(), 3u) << report;
  EXPECT_TRUE(rows[0].starts_with("fp16 static 1 to 2^8 (2^8) 0/45")) << report;
  EXPECT_TRUE(rows[1].starts_with("fp16 static 2^30, 2^31 (2^31) 0/45")) << report;
}

TEST(SweepCommand, SamplesBySeed) {
  const Arguments sweep = {
      "sweep",    kSingle, "--policy", "torch", "--vary", "init_scale=1..1e9*10",
      "--random", "20",    "--csv",    "-"};
  const std::string first = Succeed(sweep);
  EXPECT_EQ(Lines(first).size(), 21u);
  EXPECT_EQ(first, Succeed(sweep));
  EXPECT_NE(first, Succeed(Joined(sweep, {"--seed", "5"})));
}

TEST(SweepCommand, AGridFileSaysTheSameAndTheCommandLineWins) {
  const TempDir dir;
  const std::string grid = dir.Write(
      "g.toml", "format = \"fp16\"\npolicy = \"torch\"\n[vary]\ninit_scale = \"2^0..2^3\"\n");
  const Arguments by_file = {"sweep", kSingle, "--grid", grid, "--csv", "-"};
  EXPECT_EQ(Succeed(by_file), Succeed({"sweep", kSingle, "--format", "fp16", "--policy", "torch",
                                       "--vary", "init_scale=2^0..2^3", "--csv", "-"}));
  EXPECT_EQ(Lines(Succeed(Joined(by_file, {"--vary", "init_scale=1"}))).size(), 2u);
  const std::string bad = dir.Write("bad.toml", "policy = \"torch\"\n[vary]\n\ngrowth = 1\n");
  ExpectFailure({"sweep", kSingle, "--grid", bad}, 2, {"bad.toml:4", "growth"});
  const std::string key = dir.Write("key.toml", "polcy = \"torch\"\n");
  ExpectFailure({"sweep", kSingle, "--grid", key}, 2, {"key.toml:1", "did you mean 'policy'"});
  ExpectFailure({"sweep", kSingle, "--grid", dir.path() + "/none"}, 3, {"none"});
}

TEST(SweepCommand, SaysWhatIsWrong) {
  const Arguments torch = {"sweep", kSingle, "--policy", "torch"};
  ExpectFailure(Joined(torch, {"--vary", "growth_intervall=1"}), 2,
                {"--vary", "did you mean 'growth_interval'"});
  ExpectFailure(Joined(torch, {"--set", "init=1"}), 2, {"--set", "unknown parameter 'init'"});
  ExpectFailure(Joined(torch, {"--vary", "init_scale"}), 2, {"--vary", "KEY=VALUES"});
  ExpectFailure(Joined(torch, {"--vary", "deepspeed.scale_window=1"}), 2,
                {"deepspeed is not in the sweep"});
  ExpectFailure(Joined(torch, {"--vary", "init_scale=x"}), 2, {"init_scale"});
  ExpectFailure(Joined(torch, {"--vary", "format=fp61"}), 2, {"fp61"});
  ExpectFailure(Joined(torch, {"--vary", "rounding=up"}), 2, {"--rounding", "up"});
  ExpectFailure(Joined(torch, {"--vary", "policy=static"}), 2, {"policy is given twice"});
  ExpectFailure(Joined(torch, {"--vary", "growth_factor=0.5"}), 2, {"every run was refused"});
  ExpectFailure(Joined(torch, {"--vary", "init_scale=1..1e6/1"}), 2,
                {"3000000 runs", "--limit", "--random"});
  ExpectFailure(Joined(torch, {"--json", "x", "--csv", "x"}), 2, {"taken by --json"});
  ExpectFailure(Joined(torch, {"--random", "0"}), 2, {"--random"});
  ExpectFailure({"sweep", "/nonexistent"}, 3, {"nonexistent"});
}

class SweptProfile : public testing::Test {
 protected:
  SweptProfile() {
    const std::vector<std::string> paths = {kDiabetes};
    const TraceReader trace = TraceReader::Open(paths, {});
    ProfileSettings settings;
    settings.ladder = DefaultLadder();
    const HistogramEdges edges = EdgesOf(settings.ladder);
    ProfileWriter writer(profile_, settings, ProfileWriter::Existing::kReplace);
    for (size_t i = 0; i < trace.step_count(); ++i) {
      writer.Append(EncodeStep(ProfileOf(trace.Load(i), edges, {}), edges));
    }
    writer.Commit();
  }

  TempDir dir_;
  std::string profile_ = dir_.path() + "/run.dlprof";
};

TEST_F(SweptProfile, EqualsTheTraceOnTheLadder) {
  const Arguments options = {
      "--policy", "torch", "--policy", "static", "--vary", "init_scale=2^0..2^30", "--json", "-"};
  const json of_trace = SucceedJson(Joined({"sweep", kDiabetes}, options));
  const json of_profile = SucceedJson(Joined({"sweep", profile_}, options));
  ASSERT_EQ(of_trace["runs"].size(), of_profile["runs"].size());
  for (size_t r = 0; r < of_trace["runs"].size(); ++r) {
    const json &a = of_trace["runs"][r], &b = of_profile["runs"][r];
    SCOPED_TRACE(a.dump());
    EXPECT_EQ(b["summary"]["exact"], true);
    EXPECT_EQ(a["params"], b["params"]);
    ExpectSameSummary(a["summary"], b["summary"]);
  }
  EXPECT_EQ(of_trace["pareto"], of_profile["pareto"]);
}

TEST_F(SweptProfile, MarksWhatItsLadderLacks) {
  const std::string text = Succeed({"sweep", profile_, "--format", "fp16", "--policy", "static",
                                    "--vary", "loss_scale=0.0003,1"});
  EXPECT_NE(text.find("~: 1 run asks more than the profile is exact for"), std::string::npos)
      << text;
}

TEST_F(SweptProfile, LivesThroughStepsWithPoliciesThatAskMoreThanTotals) {
  for (const char* policy : {"adaloss", "fairscale", "popart"}) {
    const Arguments options = {"--policy", policy, "--format", "fp16", "--json", "-"};
    const json swept = SucceedJson(Joined({"sweep", profile_}, options))["runs"].at(0);
    const json replayed = SucceedJson(Joined({"replay", profile_}, options))["runs"].at(0);
    SCOPED_TRACE(policy);
    EXPECT_EQ(swept["summary"]["steps"], 25);
    ExpectSameSummary(replayed["summary"], swept["summary"]);
  }
}

TEST_F(SweptProfile, SeesOnlyTheTensorsThatMatch) {
  const std::string pattern = "*bias*";
  const Arguments options = {"--tensors", pattern,    "--policy", "torch",  "--policy",
                             "fairscale", "--format", "fp16",     "--json", "-"};
  const json of_trace = SucceedJson(Joined({"sweep", kDiabetes}, options));
  const json of_profile = SucceedJson(Joined({"sweep", profile_}, options));
  const json of_all = SucceedJson({"sweep", kDiabetes, "--policy", "torch", "--json", "-"});
  ASSERT_EQ(of_trace["runs"].size(), 2u);
  for (size_t r = 0; r < 2; ++r) {
    const json &a = of_trace["runs"][r]["summary"], &b = of_profile["runs"][r]["summary"];
    ExpectSameSummary(a, b);
    EXPECT_LT(a["elements"], of_all["runs"][0]["summary"]["elements"]);
  }
  ExpectFailure({"sweep", profile_, "--tensors", "nothing*"}, 3, {"no tensor matches"});
}

TEST_F(SweptProfile, RefusesWhatAProfileCannotTell) {
  ExpectFailure({"sweep", profile_, "--rounding", "sr"}, 2, {"stochastic rounding", "trace"});
  const json document = SucceedJson({"sweep", profile_, "--policy", "all", "--format", "fp16",
                                     "--vary", "rounding=rne,sr", "--json", "-"});
  EXPECT_GT(document["runs"].size(), 20u);
  for (const json& run : document["runs"]) EXPECT_EQ(run["rounding"], "rne");
  uint64_t refused = 0;
  for (const json& points : document["refused"]) {
    const bool stochastic = points["reason"].get<std::string>().starts_with("stochastic");
    refused += stochastic ? points["count"].get<uint64_t>() : 0;
  }
  EXPECT_EQ(refused, document["runs"].size());
  ExpectFailure({"sweep", profile_, "--grad-accum-steps", "2"}, 2, {"made otherwise"});
  ExpectFailure({"sweep", profile_, kDiabetes}, 2, {"only traces, or only profiles"});
}

}  // namespace
}  // namespace dlsim::sim
