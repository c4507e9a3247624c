// SPDX-License-Identifier: Apache-2.0
// The contract of the command line: exit codes, one-line errors, and how arguments are read.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"

namespace dlsim {
namespace {

using nlohmann::json;

TEST(Cli, WrongUsageIsOneLineAndExitCode2) {
  ExpectFailure({"frob"}, 2, {"unknown command", "'frob'"});
  ExpectFailure({"repaly", kSingle}, 2, {"did you mean 'replay'?"});
  ExpectFailure({"--frob"}, 2, {"unknown option, expected a command, then its options"});
  ExpectFailure({"--format", "fp16", "replay", kSingle}, 2, {"a command, then", "'--format'"});
  ExpectFailure({"replay", kSingle, "--foramt", "fp16"}, 2, {"(did you mean '--format'?)"});
  ExpectFailure({"scaler", "--polcy=torch"}, 2, {"(did you mean '--policy'?)"});
  ExpectFailure({"replay", kSingle, "--format", "FP16"}, 2,
                {"unknown name (did you mean 'fp16'?), expected fp16, bf16, ", "got 'FP16'"});
  ExpectFailure({"replay", kSingle, "--format", "fp61"}, 2,
                {"unknown name (did you mean 'fp16'?), expected fp16, ", "got 'fp61'"});
  ExpectFailure({"replay", kSingle, "--rounding", "nearest"}, 2, {"(did you mean 'rne'?)"});
  ExpectFailure({"reprot"}, 2, {"did you mean 'report'?"});
  ExpectFailure({"report", "--help"}, 2, {"dlsim report:", "the Python package", "pip install ."});
  ExpectFailure({"import", "a.pt", "-o", "b"}, 2, {"dlsim import:", "pip install ."});
  ExpectFailure({"replay"}, 2, {"TRACE is required"});
  ExpectFailure({"replay", kSingle, "--frob"}, 2, {"--frob"});
  ExpectFailure({"replay", kSingle, "--fr\nob"}, 2, {"--fr\\x0aob"});
  ExpectFailure({"replay", kSingle, "--format"}, 2, {"--format"});
  ExpectFailure({"replay", kSingle, "--format", "fp61"}, 2, {"'fp61'", "fp16, bf16, cb16", "eXmY"});
  ExpectFailure({"replay", kSingle, "--policy", "torhc"}, 2, {"did you mean 'torch'?", "'torhc'"});
  ExpectFailure({"replay", kSingle, "--set", "init_scael=1"}, 2, {"did you mean 'init_scale'?"});
  ExpectFailure({"replay", kSingle, "--policy", "torch", "--policy", "static", "--set", "nope=1"},
                2, {"'nope'", "growth_interval", "loss_scale"});
  ExpectFailure({"replay", kSingle, "--set", "init_scale"}, 2, {"KEY=VALUE", "'init_scale'"});
  ExpectFailure({"replay", kSingle, "--set", "init_scale=2^x"}, 2,
                {"torch.init_scale: not a number", "'2^x'"});
  ExpectFailure({"replay", kSingle, "--rounding", "up"}, 2, {"--rounding", "rne, rtz", "'up'"});
  ExpectFailure({"replay", kSingle, "--finite-test", "x"}, 2, {"elementwise, global-norm", "'x'"});
  ExpectFailure({"replay", kSingle, "--check", "x"}, 2, {"--check", "grad, all"});
  ExpectFailure({"tune", kSingle, "--recipe", "bf16"}, 2, {"--recipe", "autocast, half"});
  ExpectFailure({"replay", kSingle, "--accumulate", "x"}, 2, {"quantize-first, sum-first"});
  ExpectFailure({"replay", kSingle, "--on-fatal", "x"}, 2, {"stop, continue"});
  ExpectFailure({"replay", kSingle, "--seed", "-1"}, 2, {"--seed: negative"});
  ExpectFailure({"replay", kSingle, "--top", "many"}, 2, {"--top: not a number", "'many'"});
  ExpectFailure({"replay", kSingle, "--json", "-", "--csv", "-"}, 2, {"--csv", "--json"});
  ExpectFailure({"replay", kSingle, "--json", "r.json", "--csv", "./r.json"}, 2,
                {"--csv", "--json"});
  ExpectFailure(
      {"replay", kSingle, "--policy", "torch", "--state", "scale=1", "--state", "scale=2"}, 2,
      {"torch.scale: given twice"});
  ExpectFailure({"replay", kSingle, "--policy", "torch", "--state", "growth_tracker=1e12"}, 2,
                {"torch.growth_tracker: not a value"});
  ExpectFailure({"replay", kSingle, "--max-gradient-norm", "1e39"}, 2,
                {"max_gradient_norm: out of range", "float32"});
  ExpectFailure({"replay", kSingle, "--resume-at", "0"}, 2, {"--resume-at", "1 to 377"});
  ExpectFailure({"replay", kSingle, "--resume-at", "378"}, 2, {"--resume-at", "1 to 377", "378"});
  ExpectFailure({"replay", kSingle, "--optimizer", "head=*head*", "--optimizer", "body=*"}, 2,
                {"--optimizer", "no parameter gradient matches 'head'", "'*head*'"});
  ExpectFailure({"replay", kSingle, "--optimizer", "body=*", "--optimizer", "late=blocks.*"}, 2,
                {"--optimizer", "no parameter gradient matches 'late'", "'blocks.*'"});
  ExpectFailure({"convert", "in.npy", "out.npy"}, 2, {"--to", "--from"});
  ExpectFailure({"convert", "--to", "fp16", "--from", "fp16", "in.npy", "out.npy"}, 2, {"--from"});
  ExpectFailure({"convert", "--to", "fp16", "in.npy"}, 2, {"OUT is required"});
  ExpectFailure({"convert", "--to", "fp61", "in.npy", "out.npy"}, 2, {"unknown name", "'fp61'"});
  for (const char* scale : {"0", "-1", "1e300", "1e-60"}) {
    ExpectFailure({"convert", "--to", "fp16", "--scale", scale, "in.npy", "out.npy"}, 2,
                  {"--scale", "a positive float32 number"});
  }
  ExpectFailure({"scaler"}, 2, {"--policy and --steps"});
  ExpectFailure({"scaler", "--policy", "torch", "--steps", "ten"}, 2, {"--steps", "'ten'"});
  ExpectFailure({"scaler", "--policy", "torch", "--steps", "-5"}, 2, {"--steps: negative"});
  ExpectFailure({"scaler", "--policy", "torch", "--steps", "9", "--overflow-at", "1,2x"}, 2,
                {"--overflow-at", "'2x'"});
  ExpectFailure({"scaler", "--policy", "torch", "--steps", "9", "extra"}, 2, {"extra"});
  ExpectFailure({"scaler", "--policy", "popart", "--steps", "9"}, 2, {"--histogram: missing"});
  ExpectFailure({"scaler", "--policy", "adaloss", "--steps", "9"}, 2, {"adaloss", "dlsim replay"});
  ExpectFailure({"scaler", "--policy", "torch", "--steps", "1", "--absmax", "-1"}, 2,
                {"--absmax: not a magnitude", "'-1'"});
  ExpectFailure({"scaler", "--policy", "torch", "--steps", "1", "--histogram", "1"}, 2,
                {"--histogram", "BELOW:ABOVE", "'1'"});
  ExpectFailure({"formats", "x"}, 2, {"unknown name", "'x'"});
}

TEST(Cli, BadInputIsOneLineAndExitCode3) {
  const TempDir dir;
  ExpectFailure({"replay", "/nonexistent"}, 3, {"/nonexistent: cannot be opened"});
  ExpectFailure({"info", "/nonexistent"}, 3, {"/nonexistent: cannot be opened"});
  ExpectFailure({"replay", dir.path()}, 3, {dir.path()});
  const std::string corrupt = dir.Write("corrupt.safetensors", "not a header");
  ExpectFailure({"replay", corrupt}, 3, {"corrupt.safetensors"});
  ExpectFailure({"info", corrupt}, 3, {"corrupt.safetensors"});
  ExpectFailure({"convert", "--to", "fp16", corrupt, dir.path() + "/o.npy"}, 3, {"corrupt"});
  ExpectFailure({"replay", kSingle, "--tensors", "nope*"}, 3, {"no tensor matches", "'nope*'"});
  ExpectFailure({"info", kSingle, "--tensors", "nope*"}, 3, {"no tensor matches", "'nope*'"});
  ExpectFailure({"scaler", "--policy", "torch", "--steps", "9", "--overflow-at", "@/nonexistent"},
                3, {"/nonexistent: cannot be read"});
  for (const std::string& path : {std::string("/nonexistent/out"), dir.path()}) {
    ExpectFailure({"replay", kSingle, "--json", path}, 3, {path + ": cannot be written"});
    ExpectFailure({"replay", kSingle, "--csv", path}, 3, {path + ": cannot be written"});
    ExpectFailure({"scaler", "--policy", "torch", "--steps", "1", "--json", path}, 3,
                  {path + ": cannot be written"});
  }
}

TEST(Cli, AFailureLeavesNoFile) {
  const TempDir trace, results;
  trace.Write("step-0.safetensors", StepBytes(""));
  trace.Write("step-1.safetensors", "corrupt");
  const std::string json_path = results.path() + "/r.json", csv_path = results.path() + "/r.csv";
  ExpectFailure({"replay", trace.path(), "--json", json_path, "--csv", csv_path}, 3, {"step-1"});
  ExpectFailure({"replay", kSingle, "--json", json_path, "--csv", json_path}, 2, {"--csv"});
  ExpectFailure({"convert", "--from", "fp16", trace.path() + "/step-0.safetensors", json_path}, 3,
                {"step-0"});
  EXPECT_TRUE(std::filesystem::is_empty(results.path()));
}

TEST(Cli, AFullStandardOutputIsAnError) {
  for (const Arguments& arguments :
       {Arguments{"formats"}, {"--help"}, {"--version"}, {"replay", "--help"}}) {
    const CommandResult result = RunCommand(arguments, "/dev/full");
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_NE(result.err.find("standard output: cannot be written"), std::string::npos)
        << result.err;
    EXPECT_EQ(Lines(result.err).size(), 1u);
  }
}

TEST(Cli, HelpShowsAnExample) {
  EXPECT_NE(Succeed({"--help"}).find("Exit codes"), std::string::npos);
  for (const char* command :
       {"replay", "profile", "merge", "info", "scaler", "convert", "formats"}) {
    const std::string help = Succeed({command, "--help"});
    EXPECT_NE(help.find("Example"), std::string::npos) << command;
    EXPECT_NE(help.find(std::string("  dlsim ") + command), std::string::npos) << command;
  }
}

TEST(Cli, ARefusedPolicyIsAnEventBeforeTheFirstStep) {
  const CommandResult result =
      RunCommand({"replay", kSingle, "--policy", "cerebras-2.10", "--policy", "static", "--set",
                  "min_loss_scale=2^-20", "--format", "fp16", "--format", "cb16", "--json", "-"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err,
            "dlsim replay: policy cerebras-2.10: ValueError: min_loss_scale too small\n");
  const json document = json::parse(result.out);
  ASSERT_EQ(document["runs"].size(), 4u);
  const json& refused = document["runs"][0];
  EXPECT_EQ(refused["events"], json::parse(R"([{"step":-1,"type":"ValueError",
      "message":"min_loss_scale too small","fatal":true}])"));
  EXPECT_EQ(refused["params"]["min_loss_scale"], 0x1p-20);
  EXPECT_EQ(refused["summary"]["steps"], 0);
  EXPECT_TRUE(refused["summary"]["final_scale"].is_null());
  EXPECT_EQ(document["runs"][1]["summary"]["steps"], 13);  // the other policy runs

  const CommandResult scaler = RunCommand({"scaler", "--policy", "cerebras-2.10", "--set",
                                           "min_loss_scale=2^-20", "--steps", "5", "--json", "-"});
  EXPECT_EQ(scaler.exit_code, 2);
  EXPECT_EQ(Lines(scaler.err).size(), 1u);
  const json run = json::parse(scaler.out);
  EXPECT_EQ(run["events"], refused["events"]);
  EXPECT_TRUE(run["scale_init"].is_null());
  EXPECT_EQ(run["scale"], json::array());
}

TEST(Cli, OptionsDoNotSwallowTheTrace) {
  const Arguments options = {"--format", "fp16", "--policy", "torch", "--set", "init_scale=2^3",
                             "--top",    "1",    "--seed",   "2",     "--csv", "-"};
  std::vector<std::string> results;
  for (size_t at = 0; at <= options.size(); at += 2) {
    Arguments arguments = {"replay"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.insert(arguments.begin() + 1 + static_cast<std::ptrdiff_t>(at), kSingle);
    results.push_back(Succeed(arguments));
    EXPECT_EQ(results.back(), results.front()) << at;
  }
  EXPECT_EQ(Succeed({"replay", "--format=fp16", "--policy=torch", "--set=init_scale=2^3", "--csv=-",
                     kSingle}),
            results.front());
}

TEST(Cli, NumbersAndAliasesAreReadAlike) {
  const auto scale = [](const std::string& number) {
    const json document = SucceedJson({"replay", kAccumulated, "--policy", "static", "--format",
                                       "fp16", "--set", "loss_scale=" + number, "--json", "-"});
    return document["runs"][0]["steps"][0]["scale"];
  };
  EXPECT_EQ(scale("2^15"), 32768.0);
  EXPECT_EQ(scale("2e15"), 1999999973982208.0);
  EXPECT_EQ(scale("0x1.8p+3"), 12.0);
  const json document =
      SucceedJson({"replay", kAccumulated, "--policy", "cerebras_pytorch", "--format", "float16",
                   "--format", "cbfloat16", "--set", "initial_loss_scale=2^3", "--json", "-"});
  EXPECT_EQ(document["runs"][0]["policy"], "cerebras-2.10");
  EXPECT_EQ(document["runs"][0]["format"], "fp16");
  EXPECT_EQ(document["runs"][1]["format"], "cb16");
  EXPECT_EQ(document["runs"][1]["params"]["init_scale"], 8.0);
}

TEST(Cli, OverflowListsTakeCommasBlanksAndFiles) {
  const TempDir dir;
  const std::string file = dir.Write("steps.txt", "1, 3\n4 2^3\n");
  for (const std::string& list : {std::string("1,3,4,8"), std::string(" 8 4  3,1 "), "@" + file}) {
    const json document = SucceedJson(
        {"scaler", "--policy", "torch", "--steps", "1e1", "--overflow-at", list, "--json", "-"});
    EXPECT_EQ(document["skipped"], json::parse("[1,3,4,8]")) << list;
  }
}

// The helps of all parameters begin in one column.
TEST(Cli, TheListOfPoliciesLinesUp) {
  std::istringstream list(Succeed({"scaler", "--list"}));
  std::set<size_t> columns;
  for (std::string line; std::getline(list, line);) {
    if (!line.starts_with("    ")) continue;
    const size_t value = line.find_first_not_of(' ', line.find(' ', 4));
    columns.insert(line.find_first_not_of(' ', line.find("  ", value)));
  }
  EXPECT_EQ(columns.size(), 1u) << testing::PrintToString(columns);
}

TEST(Cli, TheListOfPoliciesHasTheRulesOfTheStack) {
  const std::string list = Succeed({"scaler", "--list"});
  const std::string rules =
      "finite test: scaled-norm; clipping: fairseq; a checkpoint keeps the scale only";
  EXPECT_NE(list.find("minimum\n  " + rules + "\n    init_scale"), std::string::npos);
  EXPECT_NE(
      list.find(
          "skipped\n  finite test: elementwise; clipping: torch; a checkpoint keeps nothing\n"),
      std::string::npos);
}

TEST(Cli, ScalersLookAtMagnitudesAndCounts) {
  const json logmax = SucceedJson({"scaler", "--policy", "openseq2seq-logmax", "--steps", "3",
                                   "--overflow-at", "2", "--absmax", "4,inf,4", "--json", "-"});
  EXPECT_EQ(logmax["skipped"], json::parse("[1,2]"));
  const TempDir dir;
  const std::string file = dir.Write("counts.txt", "100:0 100:1\n");
  const json popart = SucceedJson(
      {"scaler", "--policy", "popart", "--steps", "2", "--histogram", "@" + file, "--json", "-"});
  EXPECT_EQ(popart["scale"],
            json::parse(R"([["0x1.0000000000000p+1",1],["0x1.0000000000000p+0",1]])"));
  EXPECT_NE(Succeed({"scaler", "--policy", "torch", "--steps", "1", "--absmax", "1"})
                .find("note: --absmax: torch does not use it"),
            std::string::npos);
}

}  // namespace
}  // namespace dlsim
