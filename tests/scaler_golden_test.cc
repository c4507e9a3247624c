// SPDX-License-Identifier: Apache-2.0
// Replays the recorded trajectories of the real scalers (tests/data/scalers) bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "sim/scaler_run.h"

namespace dlsim {
namespace {

using Json = nlohmann::json;

constexpr size_t kEventsKept = 12;  // longer lists of events are cut in the data

struct GoldenFile {
  std::string_view name;
  std::string_view policy;
  size_t cases;
};

void PrintTo(const GoldenFile& file, std::ostream* out) { *out << file.name; }

std::vector<Json> ReadCases(const GoldenFile& file) {
  const std::string path =
      std::string(DLSIM_TEST_DATA "/scalers/").append(file.name).append(".jsonl");
  std::ifstream stream(path);
  EXPECT_TRUE(stream.is_open()) << path;
  std::vector<Json> cases;
  for (std::string line; std::getline(stream, line);) cases.push_back(Json::parse(line));
  return cases;
}

std::vector<std::string> Settings(const Json& params) {
  std::vector<std::string> settings;
  for (const auto& [key, value] : params.items()) {
    settings.push_back(key + "=" + (value.is_string() ? value.get<std::string>() : value.dump()));
  }
  return settings;
}

std::vector<int64_t> OverflowSteps(const Json& overflow_rle) {
  std::vector<int64_t> steps;
  int64_t step = 0;
  bool overflow = false;
  for (const Json& length : overflow_rle) {
    const int64_t end = step + length.get<int64_t>();
    for (; step < end; ++step) {
      if (overflow) steps.push_back(step);
    }
    overflow = !overflow;
  }
  return steps;
}

// All these scalers skip the optimizer's step on every overflow, except with a static scale.
std::vector<int64_t> SkippedSteps(const Json& golden) {
  if (golden.at("params").contains("loss_scale")) return {};
  std::vector<int64_t> steps = OverflowSteps(golden.at("overflow_rle"));
  const int64_t steps_run = golden.at("steps_run").get<int64_t>();
  std::erase_if(steps, [&](int64_t step) { return step >= steps_run; });
  return steps;
}

ScalerRun RunCase(const PolicyInfo& policy, const Json& golden) {
  const ParameterMap parameters = ResolveParameters(policy, Settings(golden.at("params")));
  try {
    return RunScaler(policy.make(parameters, ""), golden.at("steps").get<int64_t>(),
                     OverflowSteps(golden.at("overflow_rle")), OnFatal::kStop);
  } catch (const PolicyRefusal& refusal) {
    return RefusedRun(refusal);
  }
}

// The data leaves some fields of an event out; those it has must be equal.
void ExpectSameEvents(const Json& golden, const Json& events) {
  size_t total = golden.size();
  size_t kept = golden.size();
  if (total > 0 && golden.back().contains("truncated_total")) {
    total = golden.back().at("truncated_total").get<size_t>();
    kept = kEventsKept;
    ASSERT_EQ(golden.size(), kept + 1);
  }
  ASSERT_EQ(events.size(), total);
  for (size_t i = 0; i < kept; ++i) {
    for (const auto& [key, value] : golden[i].items()) EXPECT_EQ(events[i].at(key), value) << key;
    EXPECT_EQ(events[i].at("fatal"), golden[i].value("fatal", false));
  }
}

class ScalerGolden : public testing::TestWithParam<GoldenFile> {};

TEST_P(ScalerGolden, ReplaysTheOriginal) {
  const PolicyInfo& policy = FindPolicy(GetParam().policy);
  const std::vector<Json> cases = ReadCases(GetParam());
  ASSERT_EQ(cases.size(), GetParam().cases);
  for (const Json& golden : cases) {
    SCOPED_TRACE(golden.at("case").get<std::string>() + " " + golden.at("params").dump());
    const ScalerRun run = RunCase(policy, golden);
    const Json document = Json::parse(ToJson(policy.name, run).dump());
    EXPECT_EQ(document.at("scale_init"), golden.at("scale_init"));
    EXPECT_EQ(document.at("scale"), golden.at("scale_rle"));
    ExpectSameEvents(golden.at("events"), document.at("events"));
    EXPECT_EQ(run.steps_run, golden.value("steps_run", int64_t{0}));
    EXPECT_EQ(document.at("state"), golden.value("state", Json::object()));
    if (run.scale_init) {
      EXPECT_EQ(run.skipped, SkippedSteps(golden));
    }
  }
}

constexpr GoldenFile kFiles[] = {
    {"cerebras_pytorch", "cerebras_pytorch", 123},
    {"cerebras_tf", "cerebras_tf", 114},
    {"torch_new", "torch_new", 100},
    {"torch_1_13", "torch_1_13", 89},
    {"apex_amp", "apex_amp", 81},
    {"apex_fp16_utils", "apex_fp16_utils", 50},
    {"apex_update_scale_hysteresis", "apex_update_scale_hysteresis", 59},
    {"deepspeed", "deepspeed", 210},
    {"deepspeed_fp16_optimizer", "deepspeed_fp16_optimizer", 48},
    {"megatron", "megatron", 119},
    {"colossalai", "colossalai", 158},
    {"mindspore_manager", "mindspore_manager", 47},
};

INSTANTIATE_TEST_SUITE_P(Scalers, ScalerGolden, testing::ValuesIn(kFiles),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace dlsim
