// SPDX-License-Identifier: Apache-2.0
// Replays recorded loops of scaler and gradient: a step overflows when the largest magnitude, times
// the loss scale, is infinite in fp16.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/codec.h"
#include "dlsim/format.h"
#include "tests/support/golden_scalers.h"

namespace dlsim::sim {
namespace {

constexpr size_t kCases = 99;

GoldenJson ReadTraces() {
  std::ifstream stream(DLSIM_TEST_DATA "/scalers/closed_loop_traces.json");
  EXPECT_TRUE(stream.is_open());
  return GoldenJson::parse(stream);
}

// Returns the case's format: the first word of its description.
CodecSpec FormatOf(const GoldenJson& golden) {
  const std::string description = golden.at("format").get<std::string>();
  return MakeCodecSpec(
      {.format = ParseFormat(description.substr(0, description.find(' '))).format});
}

bool Overflows(const CodecSpec& format, double scale, float magnitude) {
  const float scaled = static_cast<float>(scale) * magnitude;
  const EncodeResult encoded =
      Encode(format, Rounding::kNearestEven, std::bit_cast<uint32_t>(scaled));
  return Classify(format, encoded.code) == CodeClass::kInfinity;
}

// Returns the steps that overflow, up to the one on which the original stops.
std::vector<int64_t> CloseTheLoop(const PolicyInfo& policy, const GoldenJson& golden,
                                  const GoldenJson& magnitudes) {
  const CodecSpec format = FormatOf(golden);
  const ParameterMap parameters = ResolveParameters(policy, GoldenSettings(golden));
  LossScaler scaler = policy.make(parameters, "").scaler;
  std::vector<int64_t> steps;
  for (int64_t step = 0; step < golden.at("steps").get<int64_t>(); ++step) {
    const std::string text = magnitudes.at(static_cast<size_t>(step)).get<std::string>();
    const float magnitude = static_cast<float>(std::strtod(text.c_str(), nullptr));
    const bool overflow = Overflows(format, scaler.scale(), magnitude);
    if (overflow) steps.push_back(step);
    const ScalerDecision decision = scaler.Next({.overflow = overflow});
    if (decision.event && decision.event->fatal) break;
  }
  return steps;
}

TEST(ClosedLoop, FollowsTheOriginals) {
  const std::vector<GoldenJson> cases = ReadGoldenCases("closed_loop");
  const GoldenJson traces = ReadTraces();
  ASSERT_EQ(cases.size(), kCases);
  for (const GoldenJson& golden : cases) {
    const std::string recorded = golden.at("scaler").get<std::string>();
    // These runs are of DeepSpeed 0.16.
    const std::string name = recorded == "deepspeed" ? "deepspeed-0.16" : recorded;
    SCOPED_TRACE(golden.at("case").get<std::string>() + " " + name + " " +
                 golden.at("params").dump());
    const auto known = std::ranges::find_if(Policies(), [&](const PolicyInfo& policy) {
      return policy.name == name || std::ranges::count(policy.aliases, name) > 0;
    });
    if (known == Policies().end()) {
      ADD_FAILURE() << "no policy of this name";
      continue;
    }
    const PolicyInfo& policy = *known;
    const std::vector<int64_t> steps =
        CloseTheLoop(policy, golden, traces.at(golden.at("trace").get<std::string>()));
    EXPECT_EQ(steps, OverflowSteps(golden.at("overflow_rle")));
    ExpectSameRun(golden, policy, RunGoldenCase(policy, golden, steps));
  }
}

}  // namespace
}  // namespace dlsim::sim
