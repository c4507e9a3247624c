// SPDX-License-Identifier: Apache-2.0
// How commands scale: the model's arithmetic, and what a document of times says by it.
#include "sim/bench/serial_share.h"

#include <gtest/gtest.h>

#include "sim/bench/command_scaling.h"

namespace dlsim::sim {
namespace {

TEST(SerialShare, IsWhatOneThreadDoesWhileOthersWait) {
  EXPECT_DOUBLE_EQ(SerialShare(1.0, 2.0, 2), 0);       // both work all the time
  EXPECT_DOUBLE_EQ(SerialShare(1.0, 1.0, 2), 1);       // one after the other
  EXPECT_NEAR(SerialShare(0.55, 1.0, 2), 0.1, 1e-12);  // 0.1 alone, 0.9 shared
  EXPECT_NEAR(SerialShare(0.325, 1.0, 4), 0.1, 1e-12);
  EXPECT_DOUBLE_EQ(SerialShare(0.4, 1.0, 2), 0);  // clocks differ: never below zero
}

TEST(SerialShare, PredictsByAmdahlsLaw) {
  EXPECT_DOUBLE_EQ(PredictedEfficiency(0, 64), 1);
  EXPECT_DOUBLE_EQ(PredictedEfficiency(1, 16), 1.0 / 16);
  EXPECT_DOUBLE_EQ(PredictedEfficiency(0.1, 16), 1 / 2.5);
}

Json Entry(const char* name, double real_time, double cpu_time) {
  return {{"name", name}, {"real_time", real_time}, {"cpu_time", cpu_time}};
}

TEST(CommandScaling, IsOfMediansOfSeveralThreads) {
  const Json entries = {Entry("c/threads:1", 10e9, 10e9), Entry("c/threads:1", 10e9, 10e9),
                        Entry("c/threads:1", 90e9, 10e9), Entry("c/threads:2", 5.5e9, 10e9),
                        Entry("d/threads:2", 5e9, 10e9)};
  const std::vector<CommandScaling> scaling = ScalingOf(entries);
  ASSERT_EQ(scaling.size(), 2u);
  EXPECT_EQ(scaling[0].name, "c/threads:2");
  EXPECT_DOUBLE_EQ(scaling[0].speedup, 10 / 5.5);
  EXPECT_NEAR(scaling[0].serial_share, 0.1, 1e-12);
  EXPECT_EQ(scaling[1].speedup, 0);  // not measured on one thread
  const Json scaled = ScalingJson(scaling);
  EXPECT_NEAR(scaled[0]["efficiency"]["16"].get<double>(), 0.4, 1e-12);
  EXPECT_FALSE(scaled[1].contains("speedup"));
}

TEST(CommandScaling, SaysThatTheMachineWasBusy) {
  const auto report = [](double cpu_time) {
    const Json entries = {Entry("c/threads:1", 10e9, cpu_time), Entry("c/threads:2", 5e9, 10e9)};
    return CommandReport({{"benchmarks", entries}});
  };
  EXPECT_EQ(report(9e9).find("busy, and"), std::string::npos);
  EXPECT_NE(report(7e9).find("The machine was busy"), std::string::npos);
}

}  // namespace
}  // namespace dlsim::sim
