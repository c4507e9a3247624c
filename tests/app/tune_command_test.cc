// SPDX-License-Identifier: Apache-2.0
// dlsim tune on the command line: what it prints can be pasted and replayed, and how it fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dlsim/profile_file.h"
#include "sim/replay/harm.h"
#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

using nlohmann::json;

// What a step of a replay's JSON loses.
double LossOf(const json& step, const Format& format) {
  const json& activations = step["activations"]["mean_harm"];
  const bool parameters_only = activations.is_null();
  const double harm =
      std::max(step["mean_harm"].get<double>(), parameters_only ? 0.0 : activations.get<double>());
  return harm <= sim::HarmLimit({format}, parameters_only) ? 0 : std::min(1.0, harm);
}

// The objective, from the steps of a replay's JSON.
double MeanLoss(const json& run) {
  const Format format = ParseFormat(run["format"].get<std::string>()).format;
  double lost = 0;
  for (const json& step : run["steps"]) {
    const bool applied = !step["skipped"].get<bool>() && step["finite"].get<bool>();
    lost += applied ? LossOf(step, format) : 1.0;
  }
  return lost / static_cast<double>(run["steps"].size());
}

TEST(TuneCommand, TheRecommendationReplaysToItsMeanLoss) {
  const json document = SucceedJson({"tune", kSingle, "--json", "-"});
  EXPECT_EQ(document["schema"], "dlsim.tune/1");
  EXPECT_EQ(document["trace"]["steps"], 13);
  EXPECT_EQ(document["resolution"], 1e-4);
  ASSERT_EQ(document["formats"].size(), 3u);
  for (const json& format : document["formats"]) {
    const json& recommended = format["recommended"];
    const std::string policy = recommended["policy"];
    EXPECT_EQ(policy, format["format"] == "fp16" ? "torch" : "cerebras-2.10");
    EXPECT_EQ(recommended["eligible"], true);
    EXPECT_EQ(recommended["errors_of_the_original"], 0);
    Arguments replay = {"replay",   kSingle, "--format", format["format"],
                        "--policy", policy,  "--json",   "-"};
    for (const auto& [key, value] : recommended["params"].items()) {
      replay.insert(replay.end(), {"--set", key + "=" + value.dump()});
    }
    const json run = SucceedJson(replay)["runs"][0];
    EXPECT_NEAR(MeanLoss(run), recommended["mean_loss"].get<double>(), 1e-15) << format["format"];
    EXPECT_EQ(run["summary"]["skipped_steps"], recommended["skipped_steps"]);
    EXPECT_EQ(run["events"].size(), 0u);
    EXPECT_LE(format["least_possible_mean_loss"], recommended["mean_loss"]);
    EXPECT_EQ(format["headroom"]["steps"].size(), 13u);
  }
  EXPECT_EQ(document["verdict"]["formats"].size(), 3u);
  EXPECT_EQ(document["verdict"]["best"], "bf16");
}

TEST(TuneCommand, TakesAProfile) {
  const TempDir dir;
  const std::string file = dir.path() + "/a.dlprof";
  const std::vector<std::string> paths = {kAccumulated};
  const TraceReader trace = TraceReader::Open(paths, {});
  ProfileSettings settings;
  settings.ladder = DefaultLadder();
  const HistogramEdges edges = EdgesOf(settings.ladder);
  ProfileWriter writer(file, settings, ProfileWriter::Existing::kReplace);
  for (size_t i = 0; i < trace.step_count(); ++i) {
    writer.Append(EncodeStep(ProfileOf(trace.Load(i), edges, {}), edges));
  }
  writer.Commit();
  const json got = SucceedJson({"tune", file, "--json", "-"});
  const json expected = SucceedJson({"tune", kAccumulated, "--json", "-"});
  EXPECT_EQ(got["harm_estimated"], true);
  for (size_t f = 0; f < 3; ++f) {
    const json& own = got["formats"][f];
    EXPECT_EQ(own["recommended"]["params"], expected["formats"][f]["recommended"]["params"]);
    EXPECT_EQ(own["config"], expected["formats"][f]["config"]);
    EXPECT_EQ(own["verdict"], expected["formats"][f]["verdict"]);
  }
  EXPECT_NE(Succeed({"tune", file, "--format", "fp16"}).find("note: read from a profile"),
            std::string::npos);
  ExpectFailure({"tune", file, kSingle}, 2,
                {"cannot mix traces and profiles", "got the trace '" + kSingle});
  ExpectFailure({"tune", file, "--format", "fp8-e4m3"}, 2,
                {"that the profile is exact for", "fp8-e4m3"});
  ExpectFailure({"tune", file, "--tensors", "nothing*"}, 3, {"no tensor matches"});
}

struct Emitted {
  std::string stack, format, file, policy;
};

class TuneEmits : public testing::TestWithParam<Emitted> {};

TEST_P(TuneEmits, AConfigurationThatReplayReads) {
  const Emitted& emitted = GetParam();
  const Arguments tune = {"tune", kSingle, "--format", emitted.format, "--emit", emitted.stack};
  const std::string block = Succeed(tune);
  Arguments with_json = tune;
  const TempDir dir;
  const std::string result = dir.path() + "/tune.json";
  with_json.insert(with_json.end(), {"--json", result});
  EXPECT_EQ(Succeed(with_json), block);
  const json recommended = json::parse(ReadBytes(result))["formats"][0]["recommended"];
  EXPECT_EQ(block.find("zero_optimization"), std::string::npos);
  std::string text = block;
  if (emitted.policy == "deepspeed") {  // with ZeRO in the user's own file
    text.replace(text.find('{'), 1, "{\"zero_optimization\": {\"stage\": 3}, ");
  }
  const std::string file = dir.Write(emitted.file, text);
  const json run = SucceedJson({"replay", kSingle, "--config", file, "--json", "-"})["runs"][0];
  EXPECT_EQ(run["format"], emitted.format);
  EXPECT_EQ(run["policy"], emitted.policy);
  if (emitted.format == "bf16") return;  // no stack scales it
  EXPECT_EQ(recommended["policy"], emitted.policy);
  for (const auto& [key, value] : recommended["params"].items()) {
    EXPECT_EQ(run["params"][key], value) << key;
  }
  EXPECT_NEAR(MeanLoss(run), recommended["mean_loss"].get<double>(), 1e-15);
}

INSTANTIATE_TEST_SUITE_P(Stacks, TuneEmits,
                         testing::Values(Emitted{"zoo", "fp16", "a.yaml", "cerebras-2.10"},
                                         Emitted{"zoo", "cb16", "b.yaml", "cerebras-2.10"},
                                         Emitted{"zoo", "bf16", "c.yaml", "static"},
                                         Emitted{"deepspeed", "fp16", "d.json", "deepspeed"},
                                         Emitted{"deepspeed", "bf16", "e.json",
                                                 "deepspeed-fp16-optimizer"}));

// tests/python/test_pasted_blocks.py runs them.
TEST(TuneCommand, EmitsPythonForStacksThatAreSetUpInPython) {
  const Arguments tune = {"tune", kTraces + "cnn-digits", "--format", "fp16"};
  const json document = SucceedJson({tune[0], tune[1], tune[2], tune[3], "--json", "-"});
  const std::string scaler = "(device, init_scale=16384.0, growth_interval=2000)\n";
  for (const auto& [stack, line] :
       {std::pair{"torch", "\nscaler = torch.amp.GradScaler" + scaler},
        std::pair{"accelerate", std::string("    kwargs_handlers=[GradScalerKwargs("
                                            "init_scale=16384.0, growth_interval=2000)],\n")},
        std::pair{"trainer", "\ntrainer.accelerator.scaler = torch.amp.GradScaler" + scaler},
        std::pair{"lightning", std::string("GradScaler(\"cuda\", init_scale=16384.0, ")}}) {
    Arguments emit = tune;
    emit.insert(emit.end(), {"--emit", stack});
    const std::string block = Succeed(emit);
    EXPECT_NE(block.find(line), block.npos) << block;
    EXPECT_EQ(document["formats"][0]["config"][stack], block);
    EXPECT_EQ(Succeed(tune).find(":\n" + block) != std::string::npos,
              stack == std::string("torch"));
  }
}

TEST(TuneCommand, KnowsStacksByTheNamesThatPeopleUse) {
  const Arguments emit = {"tune", kSingle, "--format", "fp16", "--emit"};
  for (const auto& [alias, name] : {std::pair{"pytorch", "torch"}, std::pair{"hf", "trainer"}}) {
    Arguments by_alias = emit, by_name = emit;
    by_alias.emplace_back(alias);
    by_name.emplace_back(name);
    EXPECT_EQ(Succeed(by_alias), Succeed(by_name));
  }
}

TEST(TuneCommand, EmitsForAnotherPolicyOfTheStack) {
  const TempDir dir;
  const std::string block =
      Succeed({"tune", kSingle, "--policy", "deepspeed-fp16-optimizer", "--emit", "deepspeed"});
  EXPECT_EQ(block.find("hysteresis"), std::string::npos);
  const std::string file = dir.Write("ds.json", block);
  const json run = SucceedJson({"replay", kSingle, "--config", file, "--json", "-"})["runs"][0];
  EXPECT_EQ(run["policy"], "deepspeed-fp16-optimizer");
}

TEST(TuneCommand, CountsStepsThatNeedAScaleAsTheVerdictDoes) {
  const TempDir trace;
  const auto write = [&](const std::string& step, float size) {
    std::vector<float> values;
    for (int i = 1; i <= 64; ++i) values.push_back(size * static_cast<float>(i));
    trace.Write("step-" + step + ".safetensors",
                BuildSafetensors({FloatTensor("fc.weight.grad", values)}));
  };
  write("0", 1e-9f);
  write("1", 1e-4f);
  write("2", 1e-9f);
  const json paths = SucceedJson({"replay", trace.path(), "--format", "fp16", "--policy", "static",
                                  "--json", "-"})["verdict"]["paths"];
  EXPECT_EQ(paths[0]["steps_below"], 2);
  const json tuning = SucceedJson({"tune", trace.path(), "--format", "fp16", "--json", "-"});
  const std::string reason = tuning["formats"][0]["reason"];
  EXPECT_TRUE(
      reason.ends_with(" is safe at 3 of 3 steps; without loss scaling 2 steps lose too much"))
      << reason;
}

TEST(TuneCommand, ReportsTheEvidence) {
  const std::string report = Succeed({"tune", kSingle, "--format", "fp16", "--details"});
  for (const std::string words :
       {"with dynamic loss scaling: each fixed", "objective: ", "fp16: dynamic scaling recommended",
        "torch: init_scale", "no scaling", "best power of two for each step",
        "no loss scale is safe at all steps: step", "each step: lowest",
        "largest finite loss scale of each step", "evidence: 13 steps, of which 9 can be finite",
        "overflow first", "lose most to underflow", "lose most at the recommendation",
        "PyTorch:", "For other stacks: --emit zoo, ", "are 1 to 100 steps apart"}) {
    EXPECT_NE(report.find(words), std::string::npos) << words;
  }
}

TEST(TuneCommand, SaysWhatToChangeInAConfiguration) {
  const TempDir dir;
  const std::string file = dir.Write(
      "ds.json", R"({"fp16": {"enabled": true, "initial_scale_power": 16, "hysteresis": 2},
                     "zero_optimization": {"stage": 1}})");
  const Arguments tune = {"tune", kTraces + "cnn-digits", "--config", file};
  Arguments with_json = tune;
  with_json.insert(with_json.end(), {"--json", "-"});
  const json document = SucceedJson(with_json);
  ASSERT_EQ(document["formats"].size(), 1u);
  const json& fp16 = document["formats"][0];
  EXPECT_EQ(fp16["recommended"]["policy"], "deepspeed");
  const json& current = fp16["comparisons"].back();
  EXPECT_EQ(current["label"], file);
  EXPECT_EQ(current["params"]["init_scale"], 65536.0);
  ASSERT_EQ(fp16["changes"].size(), 1u);  // what does not matter stays as it is
  EXPECT_EQ(fp16["changes"][0]["parameter"], "init_scale");
  EXPECT_EQ(fp16["changes"][0]["from"], 65536.0);
  EXPECT_EQ(fp16["changes"][0]["to"], fp16["recommended"]["params"]["init_scale"]);
  EXPECT_NE(Succeed(tune).find("init_scale from 2^16 to 2^14\n"), std::string::npos);

  const std::string good =
      dir.Write("good.json", R"({"fp16": {"enabled": true, "initial_scale_power": 12},
                       "zero_optimization": {"stage": 1}})");
  const std::string kept = Succeed({"tune", kTraces + "cnn-digits", "--config", good});
  EXPECT_NE(kept.find("good.json: nothing to change"), std::string::npos) << kept;

  const std::string fixed =
      dir.Write("static.json", R"({"fp16": {"enabled": true, "loss_scale": 1024}})");
  const std::string report = Succeed({"tune", kTraces + "cnn-digits", "--config", fixed});
  EXPECT_NE(report.find("static.json"), std::string::npos) << report;
}

TEST(TuneCommand, IsQuietIfAsked) {
  EXPECT_EQ(Succeed({"tune", kSingle, "--format", "bf16", "--quiet"}), "");
  EXPECT_NE(Succeed({"tune", kSingle, "--quiet", "--emit", "torch"}), "");
}

TEST(TuneCommand, RefusesWhatItCannotTune) {
  ExpectFailure({"tune", kSingle, "--policy", "static"}, 2, {"--policy", "nothing to tune"});
  ExpectFailure({"tune", kSingle, "--policy", "torhc"}, 2, {"torhc", "torch"});
  ExpectFailure({"tune", kSingle, "--format", "fp61"}, 2, {"fp61"});
  ExpectFailure({"tune", kSingle, "--emit", "zo"}, 2, {"--emit", "zoo"});
  ExpectFailure({"tune", kSingle, "--emit", "torch", "--format", "cb16"}, 2, {"--emit", "cb16"});
  ExpectFailure({"tune", kSingle, "--emit", "torch", "--policy", "apex"}, 2, {"--emit", "apex"});
  ExpectFailure({"tune", kSingle, "--emit", "zoo", "--format", "cb16", "--format", "fp16"}, 2,
                {"--emit", "one --format"});
  ExpectFailure({"tune", kSingle, "--rounding", "sr"}, 2, {"--rounding"});
  ExpectFailure({"tune", kSingle, "--overflow", "saturate"}, 2, {"--overflow"});
  ExpectFailure({"tune", kSingle, "--json", "/nonexistent/x.json"}, 3, {"/nonexistent/x.json"});
  ExpectFailure({"tune", "/nonexistent"}, 3, {"/nonexistent"});
  ExpectFailure({"tune"}, 2, {"TRACE"});
}

}  // namespace
}  // namespace dlsim
