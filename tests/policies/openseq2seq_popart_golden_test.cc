// SPDX-License-Identifier: Apache-2.0
// Replays the recorded runs of the scalers that look at magnitudes or counts.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/golden_scalers.h"

namespace dlsim::sim {
namespace {

constexpr double kTolerance = 1e-4;  // logarithms and powers differ by some ulps

// std::strtod reads "0x1.8p+3" and "inf".
double ToDouble(const GoldenJson& text) {
  return std::strtod(text.get<std::string>().c_str(), nullptr);
}

std::vector<float> Magnitudes(const GoldenJson& golden) {
  std::vector<float> magnitudes;
  for (const GoldenJson& text : golden.at("amax")) {
    magnitudes.push_back(static_cast<float>(ToDouble(text)));
  }
  return magnitudes;
}

std::vector<double> GoldenScales(const GoldenJson& golden) {
  std::vector<double> scales;
  for (const GoldenJson& run : golden.at("scale_rle")) {
    scales.insert(scales.end(), run.at(1).get<size_t>(), ToDouble(run.at(0)));
  }
  return scales;
}

std::vector<double> Scales(const ScalerRun& run) {
  std::vector<double> scales;
  for (const ScaleRun& part : run.scale) {
    scales.insert(scales.end(), static_cast<size_t>(part.count), part.scale);
  }
  return scales;
}

TEST(LogMaxGolden, FollowsTheOriginal) {
  const PolicyInfo& policy = FindPolicy("openseq2seq_logmax");
  const std::vector<GoldenJson> cases = ReadGoldenCases("openseq2seq_logmax");
  ASSERT_EQ(cases.size(), 12u);
  for (const GoldenJson& golden : cases) {
    SCOPED_TRACE(golden.at("case").get<std::string>() + " " + golden.at("params").dump());
    const std::vector<int64_t> overflow_steps = OverflowSteps(golden.at("overflow_rle"));
    const StepSignals signals = {.absmax = Magnitudes(golden)};
    const ScalerRun run = RunGoldenCase(policy, golden, overflow_steps, signals);
    EXPECT_EQ(run.scale_init, ToDouble(golden.at("scale_init")));
    const std::vector<double> expected = GoldenScales(golden);
    const std::vector<double> scales = Scales(run);
    ASSERT_EQ(scales.size(), expected.size());
    for (size_t i = 0; i < scales.size(); ++i) {
      EXPECT_NEAR(scales[i], expected[i], kTolerance * expected[i]) << "step " << i;
    }
    EXPECT_EQ(run.skipped, overflow_steps);
    EXPECT_TRUE(run.events.empty());
    EXPECT_TRUE(run.state.empty());
    EXPECT_EQ(run.steps_run, golden.at("steps_run").get<int64_t>());
  }
}

TEST(PopartGolden, FollowsTheOriginalBitForBit) {
  const PolicyInfo& policy = FindPolicy("popart_als");
  const std::vector<GoldenJson> cases = ReadGoldenCases("popart_als");
  ASSERT_EQ(cases.size(), 8u);
  for (const GoldenJson& golden : cases) {
    SCOPED_TRACE(golden.at("case").get<std::string>() + " " + golden.at("params").dump());
    StepSignals signals;
    for (const GoldenJson& counts : golden.at("lower_upper_counts")) {
      signals.histogram.push_back({counts.at(0).get<uint64_t>(), counts.at(1).get<uint64_t>()});
    }
    const ScalerRun run = RunGoldenCase(policy, golden, {}, signals);
    EXPECT_EQ(run.scale_init, ToDouble(golden.at("scale_init")));
    EXPECT_EQ(Scales(run), GoldenScales(golden));
    EXPECT_TRUE(run.skipped.empty());
    EXPECT_TRUE(run.events.empty());
    EXPECT_TRUE(run.state.empty());
  }
}

}  // namespace
}  // namespace dlsim::sim
