// SPDX-License-Identifier: Apache-2.0
// The contract of what the command writes: JSON keys and types, CSV rows (docs/results.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "dlsim/format.h"
#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

using nlohmann::json;

// Expects exactly these keys, each with a value of this type: n number or text "inf", "nan";
// i integer; s text; I, N, S the same or null; b truth value; o object; a array.
void ExpectKeys(const json& object, const std::map<std::string, char>& keys) {
  ASSERT_TRUE(object.is_object());
  for (const auto& [key, type] : keys) {
    ASSERT_TRUE(object.contains(key)) << key;
    const json& value = object[key];
    const bool special = value == "inf" || value == "-inf" || value == "nan";
    const bool nullable = type == 'I' || type == 'N' || type == 'S';
    const bool right = (nullable && value.is_null()) ||
                       ((type == 'n' || type == 'N') && value.is_number()) ||
                       ((type == 'n' || type == 'N') && special) ||
                       ((type == 'i' || type == 'I') && value.is_number_integer()) ||
                       ((type == 's' || type == 'S') && value.is_string()) ||
                       (type == 'b' && value.is_boolean()) || (type == 'o' && value.is_object()) ||
                       (type == 'a' && value.is_array());
    EXPECT_TRUE(right) << key << " " << value;
  }
  for (const auto& [key, value] : object.items()) EXPECT_TRUE(keys.contains(key)) << key;
}

std::map<std::string, char> WithCounters(std::map<std::string, char> keys) {
  for (const char* key :
       {"elements", "zeros", "nonfinite", "nan", "inf", "underflow", "subnormal", "overflow"}) {
    keys[key] = 'i';
  }
  keys["underflow_fraction"] = keys["energy_lost"] = 'n';
  return keys;
}

void ExpectVerdict(const json& verdict) {
  ExpectKeys(verdict, {{"formats", 'a'},
                       {"best", 's'},
                       {"lines", 'a'},
                       {"looked_at", 'a'},
                       {"recipe", 's'},
                       {"float32", 'a'},
                       {"parameters_only", 'b'},
                       {"channels", 'b'},
                       {"harm_threshold", 'n'},
                       {"paths", 'a'}});
  EXPECT_EQ(verdict["lines"].size(), verdict["formats"].size() + 1);
  EXPECT_EQ(verdict["looked_at"], (json{"grad", "act_grad"}));
  EXPECT_EQ(verdict["paths"].size(), 3u);
  ASSERT_EQ(verdict["formats"].size(), 3u);
  for (const json& format : verdict["formats"]) {
    EXPECT_EQ(format["steps"].size(), 13u);
    EXPECT_EQ(format["never_finite_steps"], 4);
    EXPECT_EQ(format["window"].is_null(), format["scale"].is_null());
    if (format["scale"].is_null()) continue;
    EXPECT_LE(format["window"][0], format["scale"]);
    EXPECT_GE(format["window"][1], format["scale"]);
  }
  EXPECT_EQ(verdict["best"], "bf16");
}

TEST(CliResults, ReplayJsonHasEveryKey) {
  const json document = SucceedJson({"replay", kSingle, "--json", "-"});
  ExpectKeys(document,
             {{"schema", 's'}, {"trace", 'o'}, {"options", 'o'}, {"verdict", 'o'}, {"runs", 'a'}});
  EXPECT_EQ(document["schema"], "dlsim.replay/1");
  ExpectVerdict(document["verdict"]);
  ExpectKeys(document["trace"], {{"paths", 'a'},
                                 {"steps", 'i'},
                                 {"first_step", 'i'},
                                 {"last_step", 'i'},
                                 {"file_bytes", 'i'},
                                 {"description", 'o'}});
  ASSERT_EQ(document["runs"].size(), 3u);  // fp16, bf16, cb16: each with its own stack's policy
  for (const json& run : document["runs"]) {
    ExpectKeys(run, {{"format", 's'},
                     {"policy", 's'},
                     {"params", 'o'},
                     {"finite_test", 's'},
                     {"notes", 'a'},
                     {"summary", 'o'},
                     {"events", 'a'},
                     {"steps", 'a'},
                     {"tensors", 'a'},
                     {"layers", 'a'}});
    ExpectKeys(run["summary"], WithCounters({{"mean_harm", 'N'},
                                             {"worst_harm", 'N'},
                                             {"steps", 'i'},
                                             {"skipped_steps", 'i'},
                                             {"longest_skip_run", 'i'},
                                             {"nonfinite_steps", 'i'},
                                             {"hopeless_steps", 'i'},
                                             {"worst_step_energy_lost", 'n'},
                                             {"first_applied_step", 'I'},
                                             {"stopped_at_step", 'I'},
                                             {"final_scale", 'n'},
                                             {"min_scale", 'n'},
                                             {"max_scale", 'n'},
                                             {"activations", 'o'},
                                             {"forward", 'o'},
                                             {"values", 'o'}}));
    ExpectKeys(run["summary"]["activations"],
               WithCounters({{"mean_harm", 'N'}, {"worst_harm", 'N'}}));
    for (const char* const role : {"forward", "values"}) {
      ExpectKeys(run["summary"][role], WithCounters({}));
    }
    EXPECT_EQ(run["steps"].size(), run["summary"]["steps"]);
    uint64_t underflow = 0, skipped = 0;
    for (const json& step : run["steps"]) {
      std::map<std::string, char> keys = {
          {"step", 'i'},    {"scale", 'n'},     {"next_scale", 'n'}, {"finite", 'b'},
          {"skipped", 'b'}, {"grad_norm", 'n'}, {"activations", 'o'}};
      keys["mean_harm"] = keys["worst_harm"] = 'N';
      keys["worst_harm_tensor"] = 'S';
      if (!step["finite"]) {
        keys["cause"] = keys["cause_tensor"] = 's';
        keys["lower_scale_helps"] = 'b';
      }
      ExpectKeys(step, WithCounters(keys));
      underflow += step["underflow"].get<uint64_t>();
      skipped += step["skipped"].get<bool>();
    }
    EXPECT_EQ(run["summary"]["underflow"], underflow);
    EXPECT_EQ(run["summary"]["skipped_steps"], skipped);
    EXPECT_GT(run["tensors"].size(), 0u);
    for (const json& tensor : run["tensors"]) {
      ExpectKeys(tensor, WithCounters({{"name", 's'},
                                       {"role", 's'},
                                       {"absmax", 'n'},
                                       {"mean_harm", 'N'},
                                       {"worst_harm", 'N'},
                                       {"mean_channel_harm", 'N'},
                                       {"worst_channel_harm", 'N'},
                                       {"channels", 'I'},
                                       {"noise", 'b'},
                                       {"worst_step_energy_lost", 'n'},
                                       {"first_overflow_step", 'I'}}));
      EXPECT_TRUE(tensor["role"] == "grad" || tensor["role"] == "act_grad");
    }
  }
}

TEST(CliResults, TheReportBeginsWithTheVerdict) {
  const std::string report = Succeed(
      {"replay", kTraces + "cnn-digits", "--policy", "cerebras", "--by-layer", "--details"});
  EXPECT_TRUE(report.starts_with("fp16  trains as far as gradients show. Safe loss scales: 2^"))
      << report;
  for (const std::string words :
       {"\nbf16  trains as far as gradients show, without loss scaling", "\ncb16  trains as far as",
        "\nBased on gradients only: the forward pass", "safe loss scales in fp16",
        "fp16 cerebras  ", "too high", "fp16 cerebras, layer",
        "rounding noise of float32 or too small for SGD: convs.0.bias.grad"}) {
    EXPECT_NE(report.find(words), std::string::npos) << words;
  }
  const std::string screen = report.substr(0, report.find("\ntrace: "));
  std::istringstream lines(screen);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

// The lines of a report that begin with these words.
std::vector<std::string> LinesOf(const std::string& report, const std::string& begin) {
  std::vector<std::string> found;
  for (const std::string& line : Lines(report)) {
    if (line.starts_with("  " + begin)) found.push_back(line);
  }
  return found;
}

TEST(CliResults, LossesInTheTablesAreHarmAndTheVerdictsOwn) {
  const Arguments replay = {"replay", kTraces + "cnn-digits", "--format", "fp16", "--policy",
                            "static"};
  const std::string report = Succeed(replay);
  for (const char* other : {"underflow", "energy lost", "gradient lost"}) {
    EXPECT_EQ(report.find(other), std::string::npos) << other;
  }
  Arguments detailed = replay;
  detailed.push_back("--details");
  for (const char* other : {"underflow", "energy lost"}) {
    EXPECT_NE(Succeed(detailed).find(other), std::string::npos) << other;
  }
  // At the scale of the verdict a run loses what the verdict says.
  const std::string verdict = LinesOf(Succeed(detailed), "fp16 ").front();
  const std::string run = LinesOf(report, "fp16 static").back();
  const auto harm = [](const std::string& line) {
    const size_t end = line.find(" %");
    return line.substr(line.rfind(' ', end - 1) + 1, end - line.rfind(' ', end - 1) - 1);
  };
  EXPECT_NE(verdict.find("  1  "), std::string::npos) << verdict;
  EXPECT_EQ(harm(verdict), harm(run));
}

TEST(CliResults, LayersAreThoseOfTheRunWorstFirst) {
  const auto replay = [](const std::vector<std::string>& more) {
    std::vector<std::string> call = {
        "replay", kTraces + "cnn-digits", "--format", "fp16", "--policy", "static",
        "--set",  "loss_scale=1"};
    call.insert(call.end(), more.begin(), more.end());
    return call;
  };
  const json layers = SucceedJson(replay({"--json", "-"}))["runs"][0]["layers"];
  EXPECT_EQ(layers.at(0)["name"], "bns.2");  // biases of convs are noise
  for (size_t i = 1; i < layers.size(); ++i) {
    EXPECT_GE(layers[i - 1]["worst_harm"], layers[i]["worst_harm"]);
  }
  const std::string report = Succeed(replay({"--by-layer", "--top", "2"}));
  const std::string cut = "\n  and " + std::to_string(layers.size() - 2) + " more: --top " +
                          std::to_string(layers.size()) + "\n";
  EXPECT_NE(report.find(cut), std::string::npos) << report;
}

TEST(CliResults, ListsThatAreCutSaySo) {
  const auto report = [](const std::string& top) {
    return Succeed(
        {"replay", kTraces + "t5-stream", "--format", "fp16", "--details", "--top", top});
  };
  const std::string cut = report("1"), whole = report("2");
  EXPECT_NE(cut.find("\n  and 1 more: --top 2\n"), std::string::npos) << cut;
  EXPECT_EQ(whole.find(" more: --top"), std::string::npos) << whole;
}

TEST(CliResults, JsonToAFileEqualsJsonToStandardOutput) {
  const TempDir dir;
  const std::string path = dir.path() + "/r.json";
  const std::string report = Succeed({"replay", kSingle, "--json", path});
  EXPECT_NE(report.find("loss scale"), std::string::npos);
  EXPECT_EQ(ReadBytes(path), Succeed({"replay", kSingle, "--json", "-"}));
  EXPECT_EQ(Succeed({"replay", kSingle, "--json", path, "--quiet"}), "");
}

TEST(CliResults, ScalerJsonHasEveryKey) {
  const json document = SucceedJson({"scaler", "--policy", "torch", "--steps", "5", "--overflow-at",
                                     "1", "--set", "init_scale=0x1.8p+3", "--json", "-"});
  ExpectKeys(document, {{"schema", 's'},
                        {"policy", 's'},
                        {"params", 'o'},
                        {"scale_init", 's'},
                        {"scale", 'a'},
                        {"skipped", 'a'},
                        {"events", 'a'},
                        {"state", 'o'}});
  EXPECT_EQ(document["schema"], "dlsim.scaler/1");
  EXPECT_EQ(document["scale_init"], "0x1.8000000000000p+3");
  EXPECT_EQ(document["scale"],
            json::parse(R"([["0x1.8000000000000p+3",1],["0x1.8000000000000p+2",4]])"));
  EXPECT_EQ(document["skipped"], json::parse("[1]"));
  EXPECT_EQ(document["params"]["init_scale"], 12.0);
}

TEST(CliResults, ReplayJsonSaysHowItWasMade) {
  const json document = SucceedJson({"replay", kSingle, "--policy", "torch", "--policy", "cerebras",
                                     "--rounding", "sr", "--seed", "7", "--subnormals", "flush",
                                     "--tensors", "*bias*", "--json", "-"});
  EXPECT_EQ(document["options"]["rounding"], "sr");
  EXPECT_EQ(document["options"]["seed"], 7);
  EXPECT_EQ(document["options"]["subnormals"], "flush");
  EXPECT_EQ(document["options"]["tensors"], "*bias*");
  EXPECT_EQ(document["runs"][0]["finite_test"], "elementwise");
  EXPECT_EQ(document["runs"][1]["finite_test"], "global-norm");
}

TEST(CliResults, ASettingForOnePolicyWinsOverOneForAll) {
  const json document =
      SucceedJson({"replay", kSingle, "--policy", "torch", "--policy", "cerebras-2.10", "--format",
                   "fp16", "--set", "init_scale=4", "--set", "torch.init_scale=8", "--json", "-"});
  EXPECT_EQ(document["runs"][0]["params"]["init_scale"], 8.0);
  EXPECT_EQ(document["runs"][1]["params"]["init_scale"], 4.0);
}

TEST(CliResults, ScalerKeepsABoundedNumberOfEvents) {
  const json document =
      SucceedJson({"scaler", "--policy", "cerebras", "--set", "max_loss_scale=1", "--set",
                   "min_loss_scale=2", "--steps", "100005", "--json", "-"});
  EXPECT_EQ(document["events"].size(), 100001u);
  EXPECT_EQ(document["events"].back()["truncated_total"], 100005);
}

TEST(CliResults, CsvHasOneRowPerRunStepMicroStepAndTensor) {
  constexpr char kHeader[] =
      "format,policy,step,micro,scale,skipped,tensor,role,elements,zeros,nan,inf,underflow,"
      "subnormal,overflow,absmax,sumsq,error_sumsq";
  const std::vector<std::string> lines =
      Lines(Succeed({"replay", kAccumulated, "--format", "fp16", "--csv", "-"}));
  EXPECT_EQ(lines.at(0), kHeader);
  EXPECT_EQ(lines.size(), 1 + 8 * 22u);  // 2 steps of 4 micro-steps, 22 tensors
  for (const std::string& line : lines) EXPECT_EQ(std::ranges::count(line, ','), 17) << line;
  const Arguments summed = {"replay",   kAccumulated, "--format", "fp16",         "--policy",
                            "cerebras", "--csv",      "-",        "--accumulate", "sum-first"};
  EXPECT_EQ(Lines(Succeed(summed)).size(), 1 + 2 * 22u);

  const TempDir dir;
  dir.Write("step-3.safetensors",
            BuildSafetensors({FloatTensor("a,\"b\".grad", {0, 1e-9f, 1e9f, -2}),
                              FloatTensor("x.act_grad", {std::nanf(""), HUGE_VALF})}));
  EXPECT_EQ(Succeed({"replay", dir.path(), "--policy", "static", "--format", "fp16", "--csv", "-"}),
            std::string(kHeader) +
                "\nfp16,static,3,,1,0,\"a,\"\"b\"\".grad\",grad,4,1,0,0,1,0,1,1000000000,1e+18,9."
                "999999434361379e-19"
                "\nfp16,static,3,,1,0,x.act_grad,act_grad,2,0,1,1,0,0,0,0,0,0\n");
}

TEST(CliResults, InfoWritesTheJsonFileThatFollows) {
  const TempDir dir;
  const std::string file = dir.path() + "/out.json";
  const json printed = SucceedJson({"info", kAccumulated, "--json"});
  for (int times = 0; times < 2; ++times) {  // the second time the file is there
    EXPECT_EQ(Succeed({"info", kAccumulated, "--json", file}), "");
    std::ifstream stream(file);
    EXPECT_EQ(json::parse(stream), printed);
  }
}

TEST(CliResults, InfoJsonListsStepsAndTensors) {
  const json document = SucceedJson({"info", kAccumulated, "--json"});
  ExpectKeys(document,
             {{"schema", 's'}, {"trace", 'o'}, {"notes", 'a'}, {"steps", 'a'}, {"tensors", 'a'}});
  EXPECT_EQ(document["schema"], "dlsim.info/1");
  ASSERT_EQ(document["steps"].size(), 8u);
  ExpectKeys(document["steps"][1],
             {{"step", 'i'}, {"file", 's'}, {"micro", 'I'}, {"rank", 'I'}, {"metadata", 'o'}});
  EXPECT_EQ(document["steps"][1]["micro"], 1);
  EXPECT_EQ(document["steps"][1]["rank"], json());
  ASSERT_EQ(document["tensors"].size(), 22u);
  ExpectKeys(document["tensors"][0], {{"name", 's'},
                                      {"role", 's'},
                                      {"dtype", 's'},
                                      {"shape", 'a'},
                                      {"files", 'i'},
                                      {"elements", 'i'}});
  EXPECT_NE(Succeed({"info", kAccumulated}).find("files: 8"), std::string::npos);
}

TEST(CliResults, FormatsJsonListsEveryRow) {
  const json document = SucceedJson({"formats", "--json"});
  EXPECT_EQ(document["schema"], "dlsim.formats/1");
  ASSERT_EQ(document["formats"].size(), kFormats.size());
  for (const json& format : document["formats"]) {
    ExpectKeys(format, {{"name", 's'},
                        {"bits", 'i'},
                        {"exponent_bits", 'i'},
                        {"mantissa_bits", 'i'},
                        {"bias", 'i'},
                        {"max_finite", 'n'},
                        {"min_normal", 'n'},
                        {"min_positive", 'n'},
                        {"overflow_threshold", 'n'},
                        {"has_infinity", 'b'},
                        {"has_subnormals", 'b'},
                        {"code_one", 'i'},
                        {"code_max", 'i'},
                        {"code_infinity", 'I'},
                        {"code_nan", 'i'},
                        {"note", 's'}});
  }
  EXPECT_EQ(document["formats"][0]["max_finite"], 65504.0);
  EXPECT_EQ(SucceedJson({"formats", "e6m5", "half", "--json"})["formats"][1]["name"], "fp16");
}

}  // namespace
}  // namespace dlsim
