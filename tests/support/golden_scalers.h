// SPDX-License-Identifier: Apache-2.0
// Reads recorded trajectories of the real scalers (tests/data/scalers) and compares runs with them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "sim/app/scaler_run.h"

namespace dlsim::sim {

using GoldenJson = nlohmann::json;

// Some files leave out the step that raises; adds it, at the scale of the step before.
inline void AddRaisingStep(GoldenJson& golden) {
  const GoldenJson events = golden.value("events", GoldenJson::array());
  if (events.empty() || !events.back().value("fatal", false)) return;
  if (events.back().value("step", int64_t{-1}) != golden.value("steps_run", int64_t{-2})) {
    return;
  }
  golden["steps_run"] = golden["steps_run"].get<int64_t>() + 1;
  GoldenJson& scales = golden["scale_rle"];
  if (scales.empty()) scales.push_back({golden.at("scale_init"), 0});
  scales.back()[1] = scales.back()[1].get<int64_t>() + 1;
}

// Returns the cases of tests/data/scalers/NAME.jsonl.
inline std::vector<GoldenJson> ReadGoldenCases(std::string_view name) {
  const std::string path = std::string(DLSIM_TEST_DATA "/scalers/").append(name).append(".jsonl");
  std::ifstream stream(path);
  EXPECT_TRUE(stream.is_open()) << path;
  std::vector<GoldenJson> cases;
  for (std::string line; std::getline(stream, line);) {
    cases.push_back(GoldenJson::parse(line));
    AddRaisingStep(cases.back());
  }
  return cases;
}

// Returns a case's parameters as the KEY=VALUE settings that a user would write.
inline std::vector<std::string> GoldenSettings(const GoldenJson& golden) {
  std::vector<std::string> settings;
  for (const auto& [key, value] : golden.at("params").items()) {
    settings.push_back(key + "=" + (value.is_string() ? value.get<std::string>() : value.dump()));
  }
  return settings;
}

// Returns the steps that overflow, from lengths of alternating runs that begin without overflow.
inline std::vector<int64_t> OverflowSteps(const GoldenJson& overflow_rle) {
  std::vector<int64_t> steps;
  int64_t step = 0;
  bool overflow = false;
  for (const GoldenJson& length : overflow_rle) {
    const int64_t end = step + length.get<int64_t>();
    for (; step < end; ++step) {
      if (overflow) steps.push_back(step);
    }
    overflow = !overflow;
  }
  return steps;
}

// Runs a case's steps with its parameters.
inline ScalerRun RunGoldenCase(const PolicyInfo& policy, const GoldenJson& golden,
                               const std::vector<int64_t>& overflow_steps,
                               const StepSignals& signals = {}) {
  try {
    const ParameterMap parameters = ResolveParameters(policy, GoldenSettings(golden));
    return RunScaler(policy.make(parameters, ""), golden.at("steps").get<int64_t>(), overflow_steps,
                     OnFatal::kStop, signals);
  } catch (const PolicyRefusal& refusal) {
    return RefusedRun(refusal);
  }
}

// The data leaves some fields of an event out; those it has must be equal.
inline void ExpectSameEvents(const GoldenJson& golden, const GoldenJson& events) {
  constexpr size_t kEventsKept = 12;  // longer lists of events are cut in the data
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

// Compares the first scale, the scale after each step, events, number of steps and final counters.
inline void ExpectSameRun(const GoldenJson& golden, const PolicyInfo& policy,
                          const ScalerRun& run) {
  const GoldenJson document = GoldenJson::parse(JsonText(RowsOf(policy.name, run)));
  EXPECT_EQ(document.at("scale_init"), golden.at("scale_init"));
  EXPECT_EQ(document.at("scale"), golden.at("scale_rle"));
  ExpectSameEvents(golden.at("events"), document.at("events"));
  EXPECT_EQ(run.steps_run, golden.value("steps_run", int64_t{0}));
  EXPECT_EQ(document.at("state"), golden.value("state", GoldenJson::object()));
}

}  // namespace dlsim::sim
