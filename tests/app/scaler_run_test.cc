// SPDX-License-Identifier: Apache-2.0
// One scaler alone: its document, its stop on a fatal event, and lists of overflow steps.
#include "sim/app/scaler_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "tests/support/make_policy.h"

namespace dlsim::sim {
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
  static constexpr std::tuple kFields = {StateField{"scale", &State::scale}};
};

ConfiguredScaler MakeFragile() { return {LossScaler::Make<Fragile>({}), {}, {}}; }

TEST(RunScaler, AnInterruptedRunForgets) {
  const auto run = [](const std::optional<Resume>& resume) {
    return RunScaler(MakePolicy("torch", {"init_scale=4", "growth_interval=6"}), 20, Steps{0},
                     OnFatal::kStop, {}, resume);
  };
  const ScalerRun whole = run(std::nullopt);
  const ScalerRun all = run(Resume{9, Kept::kAll});
  const ScalerRun scale = run(Resume{9, Kept::kScale});
  const ScalerRun nothing = run(Resume{9, Kept::kNothing});
  EXPECT_EQ(FirstDifference(whole, whole), std::nullopt);
  EXPECT_EQ(FirstDifference(whole, all), std::nullopt);
  EXPECT_EQ(FirstDifference(whole, scale), 12);  // would have grown after steps 6 and 12
  EXPECT_EQ(FirstDifference(whole, nothing), 12);
  EXPECT_EQ(scale.scale.back().scale, 8);
  EXPECT_EQ(whole.scale.back().scale, 16);
}

TEST(FirstDifference, SeesSkipsAndLengths) {
  ScalerRun a, b;
  a.scale = {{1, 4}, {2, 3}};
  b.scale = {{1, 3}, {1, 1}, {2, 3}};
  EXPECT_EQ(FirstDifference(a, b), std::nullopt);
  a.skipped = {1, 5};
  b.skipped = {1};
  EXPECT_EQ(FirstDifference(a, b), 5);
  b.scale.pop_back();
  EXPECT_EQ(FirstDifference(a, b), 4);
}

ScalerRun RunPolicy(std::string_view name, const PolicySettings& settings, int64_t steps,
                    const Steps& overflow_steps) {
  return RunScaler(MakePolicy(name, settings), steps, overflow_steps, OnFatal::kStop);
}

TEST(ScalerRun, WritesTheDocumentedJson) {
  const ScalerRun run =
      RunPolicy("cerebras-tf", {"init_scale=2^-13", "increment_period=3"}, 5, {1});
  EXPECT_EQ(JsonText(RowsOf("cerebras-tf", run)),
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
  EXPECT_EQ(nlohmann::ordered_json::parse(JsonText(RowsOf("cerebras-2.10", run)))["events"].dump(),
            R"([{"step":0,"type":"ApplianceNanError","message":"Minimum loss scale threshold was )"
            R"(reached: the scale before clamping is below min_loss_scale","fatal":false,)"
            R"("non_clamped":"0x1.0000000000000p-15"}])");
}

TEST(ScalerRun, WritesARefusalAsOneFatalEvent) {
  const ScalerRun run =
      RefusedRun({"ValueError", "no", {{"min_loss_scale", 2e-14}, {"fp16_type", "float16"}}});
  EXPECT_EQ(JsonText(RowsOf("cerebras-2.10", run)),
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

// Skips on an overflow; its scale is the last magnitude.
struct Follower {
  struct Config {};
  struct State {
    double scale = 0;
  };
  static constexpr bool kUsesAbsmax = true;
  static State Start(const Config&) { return {}; }
  static double Scale(const State& state) { return state.scale; }
  static Transition<State> Next(const Config&, const State&, const ScalerInput& input) {
    return {.next = {double{input.absmax}}, .skip = input.overflow};
  }
  static constexpr std::tuple kFields = {StateField{"scale", &State::scale}};
};

ConfiguredScaler MakeFollower() { return {LossScaler::Make<Follower>({}), {}, {}}; }

TEST(ScalerRun, MagnitudesThatAreNotFiniteOverflow) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const StepSignals signals = {.absmax = {1, infinity, nan, 4, 5}};
  const ScalerRun run = RunScaler(MakeFollower(), 5, Steps{4}, OnFatal::kStop, signals);
  EXPECT_EQ(run.skipped, (Steps{1, 2, 4}));
  ASSERT_EQ(run.scale.size(), 4u);
  EXPECT_EQ(run.scale[0].scale, 1);
  EXPECT_EQ(run.scale[1].scale, infinity);  // steps 1 and 2
  EXPECT_EQ(run.scale[1].count, 2);
  EXPECT_EQ(run.scale[2].scale, 4);
  EXPECT_EQ(run.scale[3].scale, infinity);  // a finite magnitude, but the step overflows
}

// Returns the message of the Error with exit code 2, or "".
std::string SignalError(const LossScaler& scaler, int64_t steps, const StepSignals& signals) {
  std::vector<std::string> notes;
  try {
    CheckSignals("policy", scaler, steps, signals, notes);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
}

TEST(CheckSignals, RefusesListsThatAreMissingOrTooShort) {
  const LossScaler follower = MakeFollower().scaler;
  EXPECT_EQ(SignalError(follower, 3, {}),
            "--absmax: missing, expected one magnitude per step for policy");
  EXPECT_EQ(SignalError(follower, 3, {.absmax = {1, 2}}),
            "--absmax: too few entries, expected 3, one per step, got 2");
  EXPECT_EQ(SignalError(follower, 3, {.absmax = {1, 2, 3}}), "");
  EXPECT_EQ(SignalError(follower, 0, {}), "");
  const LossScaler popart = FindPolicy("popart").make({}, "").scaler;
  EXPECT_EQ(SignalError(popart, 3, {}),
            "--histogram: missing, expected one pair of counts per step for policy");
  EXPECT_EQ(SignalError(popart, 3, {.histogram = {{1, 0}}}),
            "--histogram: too few entries, expected 3, one per step, got 1");
  const LossScaler adaloss = FindPolicy("adaloss").make({}, "").scaler;
  EXPECT_NE(SignalError(adaloss, 3, {}).find("dlsim replay"), std::string::npos);
}

TEST(CheckSignals, NotesListsThatDoNothing) {
  std::vector<std::string> notes;
  CheckSignals("fragile", MakeFragile().scaler, 1, {.absmax = {1}, .histogram = {{1, 2}, {3, 4}}},
               notes);
  EXPECT_EQ(notes, (std::vector<std::string>{"--absmax: fragile does not use it",
                                             "--histogram: fragile does not use it",
                                             "--histogram: entries from 1 on have no effect"}));
}

TEST(ParseMagnitudeList, ReadsNumbersAndInfinity) {
  const std::vector<float> magnitudes = ParseMagnitudeList("0, 2^-3 0x1.8p+1,inf");
  EXPECT_EQ(magnitudes, (std::vector<float>{0, 0.125f, 3, std::numeric_limits<float>::infinity()}));
  EXPECT_TRUE(std::isnan(ParseMagnitudeList("nan").at(0)));
  for (const std::string text : {"-1", "x", "-inf", "1:2"}) {
    EXPECT_THROW(ParseMagnitudeList(text), Error) << text;
  }
}

TEST(ParseHistogramList, ReadsPairsOfCounts) {
  const std::vector<HistogramCounts> histogram = ParseHistogramList("10:0, 0:1e3");
  ASSERT_EQ(histogram.size(), 2u);
  EXPECT_EQ(histogram[0].below, 10u);
  EXPECT_EQ(histogram[0].above, 0u);
  EXPECT_EQ(histogram[1].below, 0u);
  EXPECT_EQ(histogram[1].above, 1000u);
  for (const std::string text : {"1", "1:", ":1", "1:-2", "-1:2", "1:2:3", "1.5:2"}) {
    EXPECT_THROW(ParseHistogramList(text), Error) << text;
  }
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
}  // namespace dlsim::sim
