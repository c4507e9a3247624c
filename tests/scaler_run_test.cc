// SPDX-License-Identifier: Apache-2.0
// One scaler alone: its document, its stop on a fatal event, and lists of overflow steps.
#include "sim/scaler_run.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "sim/step_lists.h"

namespace dlsim {
namespace {

using Steps = std::vector<int64_t>;

// Raises a fatal event on every overflow.
struct Fragile {
  struct Config {};
  struct State {
    double scale = 2;
  };
  static State Start(const Config&) { return {}; }
  static double Scale(const State&) { return 2; }
  static Transition<State> Next(const Config&, const State&, const ScalerInput& input) {
    Transition<State> result = {.next = {}, .skip = input.overflow};
    if (input.overflow)
      result.event = ScalerEvent{.type = "Error", .message = "m", .fatal = true, .details = {}};
    return result;
  }
  static constexpr auto Fields() { return std::tuple{StateField{"scale", &State::scale}}; }
};

ConfiguredScaler MakeFragile() { return {LossScaler::Make<Fragile>({}), {}, {}}; }

ScalerRun RunPolicy(std::string_view name, const std::vector<std::string>& settings, int64_t steps,
                    const Steps& overflow_steps) {
  const PolicyInfo& policy = FindPolicy(name);
  return RunScaler(policy.make(ResolveParameters(policy, settings), ""), steps, overflow_steps,
                   OnFatal::kStop);
}

TEST(ScalerRun, WritesTheDocumentedJson) {
  const ScalerRun run =
      RunPolicy("cerebras-tf", {"init_scale=2^-13", "increment_period=3"}, 5, {1});
  EXPECT_EQ(ToJson("cerebras-tf", run).dump(),
            R"({"schema":"dlsim.scaler/1","policy":"cerebras-tf","params":{)"
            R"("initial_loss_scale":0.0001220703125,"increment_period":3,"multiplier":2.0,)"
            R"("min_loss_scale":6.103515625e-05,"max_loss_scale":32768.0,)"
            R"("overflow_tolerance":0.05},"scale_init":"0x1.0000000000000p-13",)"
            R"("scale":[["0x1.0000000000000p-13",1],["0x1.0000000000000p-14",3],)"
            R"(["0x1.0000000000000p-13",1]],"skipped":[1],"events":[],)"
            R"("state":{"steps_since_rescale":0,"overflows_since_rescale":0}})");
}

TEST(ScalerRun, FlattensTheDetailsOfAnEvent) {
  const ScalerRun run = RunPolicy("cerebras-2.10", {"init_scale=2^-14"}, 1, {0});
  EXPECT_EQ(ToJson("cerebras-2.10", run)["events"].dump(),
            R"([{"step":0,"type":"ApplianceNanError","message":"Minimum loss scale threshold was )"
            R"(reached: the scale before clamping is below min_loss_scale","fatal":false,)"
            R"("non_clamped":"0x1.0000000000000p-15"}])");
}

TEST(ScalerRun, WritesARefusalAsOneFatalEvent) {
  const ScalerRun run =
      RefusedRun({"ValueError", "no", {{"min_loss_scale", 2e-14}, {"fp16_type", "float16"}}});
  EXPECT_EQ(ToJson("cerebras-2.10", run).dump(),
            R"({"schema":"dlsim.scaler/1","policy":"cerebras-2.10",)"
            R"("params":{"min_loss_scale":2e-14,"fp16_type":"float16"},"scale_init":null,)"
            R"("scale":[],"skipped":[],"events":[{"step":-1,"type":"ValueError","message":"no",)"
            R"("fatal":true}],"state":{}})");
}

TEST(ScalerRun, StopsAtAFatalEventUnlessAsked) {
  const ScalerRun stopped = RunScaler(MakeFragile(), 10, Steps{3, 5}, OnFatal::kStop);
  EXPECT_EQ(stopped.steps_run, 4);
  EXPECT_EQ(stopped.events.size(), 1u);
  EXPECT_EQ(stopped.skipped, Steps{3});
  EXPECT_EQ(stopped.scale.at(0).count, 4);
  const ScalerRun continued = RunScaler(MakeFragile(), 10, Steps{3, 5}, OnFatal::kContinue);
  EXPECT_EQ(continued.steps_run, 10);
  EXPECT_EQ(continued.events.size(), 2u);
  EXPECT_EQ(continued.events.at(1).step, 5);
}

TEST(ScalerRun, TakesZeroSteps) {
  const ScalerRun run = RunPolicy("static", {"loss_scale=8"}, 0, {0});
  EXPECT_EQ(run.scale_init, 8);
  EXPECT_TRUE(run.scale.empty());
  EXPECT_EQ(run.steps_run, 0);
}

TEST(ParseOverflowList, ReadsAnySeparators) {
  EXPECT_EQ(ParseOverflowList(""), Steps{});
  EXPECT_EQ(ParseOverflowList("7"), Steps{7});
  EXPECT_EQ(ParseOverflowList("3, 1\n2\t1,2^3"), (Steps{1, 2, 3, 8}));
}

TEST(ParseOverflowList, RefusesWhatIsNoStep) {
  for (const std::string text : {"1,x", "-1", "1.5", "1;2", "1-3"}) {
    try {
      ParseOverflowList(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage) << text;
    }
  }
}

TEST(ParseOverflowList, ReadsFiles) {
  const std::string path = testing::TempDir() + "dlsim_overflow_list.txt";
  std::ofstream(path) << "5 6,\n7\n";
  EXPECT_EQ(ParseOverflowList("@" + path), (Steps{5, 6, 7}));
  std::remove(path.c_str());
  for (const std::string& unreadable : {path, testing::TempDir()}) {
    try {
      ParseOverflowList("@" + unreadable);
      ADD_FAILURE() << unreadable;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput) << error.what();
    }
  }
}

}  // namespace
}  // namespace dlsim
