// SPDX-License-Identifier: Apache-2.0
// Excerpts in the wording of each stack (tests/data/logs) are read as they were written.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "sim/base/quantity.h"
#include "sim/explain/explanation.h"
#include "sim/explain/read_log.h"
#include "tests/support/explain_text.h"

namespace dlsim::sim {
namespace {

const std::string kLogs = DLSIM_TEST_DATA "/logs/";

Explanation ExplainLogs(const std::vector<std::string>& names, const WhatIfRequest& request = {}) {
  std::vector<std::string> paths;
  for (const std::string& name : names) paths.push_back(kLogs + name);
  return Explain(BuildPath(ReadLogs(paths)), ParseFormat("fp16"), request);
}

Json Found(const Explanation& explanation) {
  const auto used = [](const LoggedStep& step) {
    return std::isnan(step.scale) ? "unknown" : ScaleText(step.scale);
  };
  const std::vector<LoggedStep>& steps = explanation.steps;
  Json found = {
      {"stack", NameOf(explanation.path.stack)},
      {"verdict", NameOf(explanation.skips.kind)},
      {"counted", explanation.counted},
      {"steps", explanation.skips.steps},
      {"skipped", explanation.skips.skipped},
      {"scales", steps.empty() ? "none" : used(steps.front()) + " to " + used(steps.back())},
      {"policy", nullptr}};
  if (explanation.inference.matches.empty()) return found;
  const PolicyMatch& match = explanation.inference.matches.front();
  found["policy"] = match.policy->name;
  found["settings"] = SetOptions(match);
  return found;
}

Json ReadFacts(const std::string& path) {
  std::ifstream file(path);
  return Json::parse(file);
}

TEST(LogExcerpts, GiveThePolicyAndTheVerdictTheyWereWrittenFrom) {
  const Json expected = ReadFacts(kLogs + "expected.json");
  EXPECT_GE(expected.size(), 30u);
  for (const auto& [name, facts] : expected.items()) {
    SCOPED_TRACE(name);
    const Json found = Found(ExplainLogs({name}));
    for (const auto& [key, value] : facts.items()) EXPECT_EQ(found[key], value) << key;
  }
}

// A row of the table in tests/data/logs/excerpts/README.md.
std::string RowOf(const Json& facts) {
  const std::string source = facts["source"];
  std::string settings;
  for (const std::string setting : facts["settings"]) settings += " " + setting;
  std::string skipped = std::to_string(facts["skipped"].get<int64_t>());
  if (facts["counted"]) skipped += " of " + std::to_string(facts["steps"].get<int64_t>());
  return "| [" + source.substr(std::string_view("https://github.com/").size()) + "](" + source +
         ") | " + facts["stack"].get<std::string>() + " | " + facts["scales"].get<std::string>() +
         " | " + skipped + " | " + facts["policy"].get<std::string>() + settings + " | " +
         facts["verdict"].get<std::string>() + " |\n";
}

// What people have posted: the wording and the numbers of their lines that tell of the scale.
TEST(LogExcerpts, OfPostedTrainingsAreReadAsTheDocumentsSay) {
  const Json expected = ReadFacts(kLogs + "excerpts/expected.json");
  std::ifstream file(kLogs + "excerpts/README.md");
  const std::string page(std::istreambuf_iterator<char>(file), {});
  std::set<std::string> stacks;
  for (const auto& [name, facts] : expected.items()) {
    SCOPED_TRACE(name);
    Json found = Found(ExplainLogs({"excerpts/" + name}));
    found["source"] = facts["source"];
    ASSERT_EQ(facts.size(), found.size());
    for (const auto& [key, value] : facts.items()) EXPECT_EQ(found[key], value) << key;
    EXPECT_NE(page.find(RowOf(found)), std::string::npos) << RowOf(found);
    stacks.insert(facts["stack"]);
  }
  EXPECT_EQ(expected.size(), 30u);
  size_t rows = 0;
  for (size_t at = page.find("\n| ["); at != page.npos; at = page.find("\n| [", at + 1)) ++rows;
  EXPECT_EQ(rows, expected.size());
  EXPECT_GE(stacks.size(), 6u);
}

TEST(LogExcerpts, TheEndOfATrainingIsADivergence) {
  const Explanation explanation = ExplainLogs({"excerpts/deepspeed-progress-to-minimum.log"});
  EXPECT_NE(FormatExplanation(explanation).find("at line 15 the training ended"),
            std::string::npos);
  EXPECT_EQ(explanation.skips.tail_skips, 6);
}

TEST(LogExcerpts, MeansAndNormsThatAreNotFiniteAreNoted) {
  const auto notes = [](const std::string& name) {
    return FormatExplanation(ExplainLogs({"excerpts/" + name}));
  };
  EXPECT_NE(notes("fairseq-roberta-mean.log").find("one value of loss_scale is a mean"),
            std::string::npos);
  EXPECT_NE(
      notes("megatron-deepspeed-nan.log").find("the gradient's norm is not finite in 3 lines"),
      std::string::npos);
}

TEST(LogExcerpts, PathOfMegatronFollowsItsHysteresis) {
  const Explanation explanation = ExplainLogs({"megatron-interval-10.log"});
  ASSERT_EQ(explanation.steps.size(), 20u);
  // The first of two overflows at 2^32 leaves the scale as it is.
  EXPECT_EQ(explanation.steps[0].scale, 0x1p32);
  EXPECT_EQ(explanation.steps[1].scale, 0x1p32);
  EXPECT_EQ(explanation.steps[2].scale, 0x1p31);
  EXPECT_EQ(explanation.steps[10].scale, 0x1p23);
  EXPECT_EQ(explanation.steps[19].scale, 0x1p15);
}

TEST(LogExcerpts, EvidenceTellsWhatTheLogShows) {
  const Explanation explanation = ExplainLogs({"megatron-steady.log"});
  for (const ParameterEvidence& evidence : explanation.inference.matches.front().evidence) {
    EXPECT_EQ(evidence.seen, evidence.name != "min_scale") << evidence.name;
  }
  // A constant scale of 1 is that of no scaler, which comes first.
  const Explanation flat = ExplainLogs({"megatron-bf16.log"});
  EXPECT_EQ(flat.inference.matches.front().policy->name, "static");
  std::string lines;
  for (int i = 91; i <= 96; ++i) {
    lines += " iteration " + std::to_string(i) +
             "/ 900 | elapsed time per iteration (ms): 1.0 | loss scale: 8.0 | number of skipped "
             "iterations: 0 |\n";
  }
  const Explanation open = ExplainText(lines);
  for (const ParameterEvidence& evidence : open.inference.matches.front().evidence) {
    EXPECT_EQ(evidence.seen, evidence.name == "initial_scale") << evidence.name;
    if (evidence.name != "growth_interval") continue;
    EXPECT_EQ(evidence.least, 6);  // six lines; what came before them is not known
    EXPECT_EQ(evidence.most, std::nullopt);
  }
}

TEST(LogExcerpts, NoPolicyIsSaidWithTheLineAndTheBestPrefix) {
  const Explanation explanation = ExplainLogs({"no-policy.csv"});
  ASSERT_TRUE(explanation.inference.best);
  const size_t good = explanation.inference.best->fit.explained;
  EXPECT_EQ(explanation.path.stretches[good].line, 3u);
  EXPECT_EQ(FormatExplanation(explanation).find("policy: none of the 34 reproduces"), 0u);
}

TEST(LogExcerpts, PartsOfARotatedLogAreOne) {
  const std::string text = [] {
    std::ifstream file(kLogs + "scale.csv");
    return std::string(std::istreambuf_iterator<char>(file), {});
  }();
  const std::string first = testing::TempDir() + "explain-1.csv";
  const std::string second = testing::TempDir() + "explain-2.csv";
  const size_t half = text.find("\n100,") + 1;
  std::ofstream(first) << text.substr(0, half);
  std::ofstream(second) << text.substr(0, text.find('\n') + 1) << text.substr(half);
  const std::vector<std::string> parts = {first, second};
  const Explanation joined = Explain(BuildPath(ReadLogs(parts)), ParseFormat("fp16"), {});
  EXPECT_EQ(Found(joined), Found(ExplainLogs({"scale.csv"})));
}

TEST(LogExcerpts, ALogWithoutAScaleIsRefusedWithWhatWasSought) {
  const std::vector<std::string> paths = {kLogs + "no-scale.log"};
  try {
    ReadLogs(paths);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    EXPECT_NE(std::string(error.what()).find("no loss scale found, expected lines or CSV columns"),
              std::string::npos);
  }
}

TEST(LogExcerpts, WhatIfCountsWhatIsCertain) {
  // 200 steps that overflow above 2^13.
  const Explanation lower =
      ExplainLogs({"scale.csv"}, {.policies = {"static"}, .settings = {"loss_scale=2^13"}});
  EXPECT_EQ(lower.what_if[0].applied.uncertain, 6);  // overflowed at higher scales only
  EXPECT_EQ(lower.what_if[0].skipped.uncertain, 6);
  const Explanation higher = ExplainLogs({"scale.csv"}, {.settings = {"init_scale=2^18"}});
  // The first three steps overflowed at 2^16 and less, so they do at 2^18 to 2^16; the two more
  // falls to 2^13 meet steps that were applied at 2^13.
  EXPECT_EQ(higher.what_if[0].skipped.skipped, 8);
  EXPECT_EQ(higher.what_if[0].policy, "torch");
}

TEST(LogExcerpts, WhatIfNeedsNumbersOfSteps) {
  EXPECT_THROW(ExplainLogs({"apex-warm-up.log"}, {.policies = {"torch"}}), Error);
}

}  // namespace
}  // namespace dlsim::sim
