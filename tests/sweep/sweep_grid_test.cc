// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/results.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "sim/base/parse.h"
#include "tests/support/trace_test_util.h"

namespace dlsim::sim {
namespace {

using Texts = std::vector<std::string>;

Texts ValuesOf(const std::string& text) { return ParseValueList(text, "place").texts; }

std::string MessageOf(const std::string& text) {
  try {
    ParseValueList(text, "place");
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
}

TEST(SweepValues, ListsAndRanges) {
  EXPECT_EQ(ValuesOf("a,2^3,0.5"), (Texts{"a", "2^3", "0.5"}));
  EXPECT_EQ(ValuesOf("2^-1..2^2"), (Texts{"2^-1", "2^0", "2^1", "2^2"}));
  EXPECT_EQ(ValuesOf("100..500/200"), (Texts{"100", "300", "500"}));
  EXPECT_EQ(ValuesOf("0..1/0.25"), (Texts{"0", "0.25", "0.5", "0.75", "1"}));
  EXPECT_EQ(ValuesOf("0..0.3/0.1").size(), 4u);
  EXPECT_EQ(ValuesOf("100..10000*10"), (Texts{"100", "1000", "10000"}));
  EXPECT_EQ(ValuesOf("100..999*10"), (Texts{"100"}));
  EXPECT_EQ(ValuesOf("7,1..2/1,x"), (Texts{"7", "1", "2", "x"}));
}

TEST(SweepValues, RefuseWhatIsNoList) {
  EXPECT_NE(MessageOf("1..8").find("without a step"), std::string::npos);
  EXPECT_NE(MessageOf("8..1/1").find("ends before it begins"), std::string::npos);
  EXPECT_NE(MessageOf("1..8/0").find("does not grow"), std::string::npos);
  EXPECT_NE(MessageOf("1..8*1").find("does not grow"), std::string::npos);
  EXPECT_NE(MessageOf("0..8*2").find("does not grow"), std::string::npos);
  EXPECT_NE(MessageOf("1..1e9/1").find("too many values"), std::string::npos);
  EXPECT_NE(MessageOf("1,,2").find("empty value"), std::string::npos);
  EXPECT_NE(MessageOf("x..8/1").find("place"), std::string::npos);
}

TEST(SweepValues, DrawsStayInTheirRange) {
  SweepRandom random(1);
  const ValueList powers = ParseValueList("2^0..2^4", ""), row = ParseValueList("10..1000*10", ""),
                  reals = ParseValueList("0..1/0.5", "");
  std::set<std::string> drawn;
  bool has_inner = false;
  for (int i = 0; i < 500; ++i) {
    drawn.insert(DrawValue(powers, random));
    const double integer = ParseNumber(DrawValue(row, random), "");
    EXPECT_EQ(integer, static_cast<double>(static_cast<int>(integer)));
    EXPECT_TRUE(integer >= 10 && integer <= 1000) << integer;
    has_inner |= integer > 11 && integer < 99;
    const double real = ParseNumber(DrawValue(reals, random), "");
    EXPECT_TRUE(real >= 0 && real <= 1) << real;
  }
  EXPECT_EQ(drawn, (std::set<std::string>{"2^0", "2^1", "2^2", "2^3", "2^4"}));
  EXPECT_TRUE(has_inner);
}

SweepGrid GridOf(const Texts& formats, const Texts& policies, const Texts& axes) {
  SweepGrid grid = {formats, policies, {"rne"}, {}, {}};
  for (const std::string& axis : axes) grid.axes.push_back(ParseAxis(axis, "--vary"));
  return grid;
}

TEST(SweepGrid, HasEveryCombinationOnce) {
  const SweepGrid grid = GridOf({"fp16", "bf16"}, {"torch", "static"},
                                {"growth_interval=1..3/1", "init_scale=2^0..2^3"});
  std::set<std::string> seen;
  for (const GridPoint& point : PointsOf(grid)) {
    std::string text = grid.formats[point.format] + " " + std::string(point.policy->name);
    for (const auto& [key, value] : ParametersOf(grid, point)) text += " " + key + "=" + value;
    EXPECT_TRUE(seen.insert(text).second) << text;
  }
  EXPECT_EQ(seen.size(), 2u * (3 * 4 + 1));  // static takes neither
}

TEST(SweepGrid, AnAxisOfOnePolicyWins) {
  const SweepGrid grid =
      GridOf({"fp16"}, {"torch", "deepspeed"}, {"init_scale=1,2", "torch.init_scale=4,8,16"});
  size_t of_torch = 0;
  for (const GridPoint& point : PointsOf(grid)) {
    const std::string value = ParametersOf(grid, point).at("init_scale");
    const bool own = value == "4" || value == "8" || value == "16";
    EXPECT_EQ(own, point.policy->name == "torch") << value;
    of_torch += own ? 1 : 0;
  }
  EXPECT_EQ(of_torch, 3u);
}

TEST(SweepGrid, AKeyHasOneAxis) {
  const SweepGrid grid = GridOf({"fp16"}, {"torch"}, {"init_scale=1,2", "init_scale=4"});
  EXPECT_THROW(PointsOf(grid), Error);
  EXPECT_EQ(AxisKeys(GridOf({"fp16"}, {"torch", "apex"}, {"init_scale=1", "torch.init_scale=2"})),
            Texts{"init_scale"});
}

TEST(SweepGrid, SamplesAreReproducible) {
  SweepGrid grid = GridOf({"fp16", "cb16"}, {"torch", "cerebras"}, {"init_scale=1..1e6*10"});
  grid.random = 100;
  const auto texts = [&] {
    Texts all;
    for (const GridPoint& point : PointsOf(grid)) {
      all.push_back(std::string(point.policy->name) + std::to_string(point.format) +
                    point.values.front());
    }
    return all;
  };
  const Texts first = texts();
  EXPECT_EQ(first.size(), 100u);
  EXPECT_EQ(first, texts());
  grid.seed = 1;
  EXPECT_NE(first, texts());
}

TEST(SweepGrid, HasALimit) {
  SweepGrid grid = GridOf({"fp16"}, {"torch"}, {"init_scale=1..1000/1", "growth_interval=1..11/1"});
  grid.limit = 11000;
  EXPECT_EQ(PointsOf(grid).size(), 11000u);
  grid.limit = 10999;
  EXPECT_THROW(PointsOf(grid), Error);
}

TEST(SweepGrid, FilesSayTheSame) {
  const SweepGrid grid = ParseGrid(
      R"({"format": "fp16,cb16", "policy": "torch", "seed": 3, "random": 7,
          "set": [["g.toml:6", "backoff_factor=0.25"]],
          "vary": [["g.toml:8", "init_scale=1,2^3..2^4"],
                   ["g.toml:10", "torch.growth_interval=1..3/1"]]})");
  EXPECT_EQ(grid.formats, (Texts{"fp16", "cb16"}));
  EXPECT_EQ(grid.policies, Texts{"torch"});
  EXPECT_EQ(grid.seed, 3u);
  EXPECT_EQ(grid.random, 7u);
  ASSERT_EQ(grid.settings.size(), 1u);
  EXPECT_EQ(grid.settings[0].values.texts, Texts{"0.25"});
  ASSERT_EQ(grid.axes.size(), 2u);
  const SweepAxis& own = grid.axes[grid.axes[0].policy.empty() ? 1 : 0];
  const SweepAxis& shared = grid.axes[grid.axes[0].policy.empty() ? 0 : 1];
  EXPECT_EQ(own.policy, "torch");
  EXPECT_EQ(own.values.texts.size(), 3u);
  EXPECT_EQ(shared.values.texts.at(2), "2^4");
}

// What a profile could not answer is counted by policy and reason, whatever numbers it holds.
TEST(SweepPlans, DropTheRefused) {
  const SweepGrid grid = GridOf({"fp16"}, {"torch"}, {"init_scale=1,2,3,5,8"});
  SweepPlan plan = PlanSweep(grid);
  std::vector<SweepOutcome> outcomes(plan.points.size());
  for (size_t i = 0; i < outcomes.size(); ++i) outcomes[i].steps = i;
  outcomes[2].refused = "scale 3 is no power of two";
  outcomes[3].refused = "scale 5 is no power of two";
  DropRefused(outcomes, plan);
  ASSERT_EQ(plan.points.size(), 3u);
  ASSERT_EQ(outcomes.size(), 3u);
  EXPECT_EQ(plan.points[2].values, Texts{"8"});
  EXPECT_EQ(outcomes[2].steps, 4u);
  ASSERT_EQ(plan.refused.size(), 1u);
  EXPECT_EQ(plan.refused[0].count, 2u);
  EXPECT_EQ(plan.refused[0].policy, "torch");
  EXPECT_EQ(plan.refused[0].reason, "scale 3 is no power of two");
  for (SweepOutcome& outcome : outcomes) outcome.refused = "no";
  EXPECT_THROW(DropRefused(outcomes, plan), Error);
}

SweepOutcome OutcomeWith(uint64_t skipped, double energy) {
  SweepOutcome outcome;
  outcome.steps = 10;
  outcome.skipped_steps = skipped;
  outcome.mean_energy_lost = energy;
  return outcome;
}

const std::vector<bool> kAlike(6, true);

TEST(SweepRanking, TheFrontHasWhatNothingBeats) {
  std::vector<SweepOutcome> outcomes = {OutcomeWith(3, 0.1), OutcomeWith(1, 0.5),
                                        OutcomeWith(3, 0.1), OutcomeWith(2, 0.6),
                                        OutcomeWith(0, 0.9), OutcomeWith(5, 0.1)};
  EXPECT_EQ(ParetoFront(outcomes, kAlike), (std::vector<size_t>{4, 1, 0}));
  outcomes[4].fatal = ScalerEvent();
  EXPECT_EQ(ParetoFront(outcomes, kAlike), (std::vector<size_t>{1, 0}));
}

TEST(SweepRanking, EndedRunsComeLast) {
  std::vector<SweepOutcome> outcomes = {OutcomeWith(0, 0), OutcomeWith(5, 0), OutcomeWith(2, 0)};
  outcomes[0].fatal = ScalerEvent();
  EXPECT_EQ(Rank(outcomes, kAlike, RankBy::kSkipped), (std::vector<size_t>{2, 1, 0}));
}

}  // namespace
}  // namespace dlsim::sim
