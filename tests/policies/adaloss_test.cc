// SPDX-License-Identifier: Apache-2.0
// The factor that adaptive loss scaling gives one gradient. Expected factors were computed apart
// from dlsim, with NumPy 1.24 and mpmath's erfinv, from the rule of the paper and its code.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/make_policy.h"

namespace dlsim::sim {
namespace {

// Returns the factor of a gradient.
double Factor(const PolicySettings& settings, const GradientSpread& spread) {
  LossScaler scaler = MakePolicy("adaloss", settings).scaler;
  scaler.Prepare(spread);
  return scaler.scale();
}

struct Case {
  GradientSpread spread;
  PolicySettings settings;
  double factor;
};

void ExpectFactors(const std::vector<Case>& cases) {
  for (const Case& test : cases) {
    EXPECT_EQ(Factor(test.settings, test.spread), test.factor)
        << test.spread.absmax << " " << test.spread.standard_deviation << " "
        << testing::PrintToString(test.settings);
  }
}

TEST(AdaLoss, LeavesGradientsWithoutSpreadAlone) {
  ExpectFactors({{{0, 0}, {}, 1}, {{1, 0}, {}, 1}, {{1e-7f, 0}, {"use_bound=false"}, 1}});
}

TEST(AdaLoss, NeverScalesDownExceptToAvoidOverflow) {
  ExpectFactors({{{1, 1}, {}, 1},
                 {{1e-3f, 1e-3}, {}, 1},
                 {{1e-3f, 4.7e-5}, {"use_bound=false"}, 1},
                 {{70000, 3e4}, {}, 0.5},
                 {{200000, 3e4}, {}, 0.25},
                 {{200, 0.1}, {"u_min=1e-2", "u_max=57344", "use_bound=false"}, 64},
                 {{3e38f, 1e38}, {}, 0}});  // too small for fp16
}

TEST(AdaLoss, LiftsTheAcceptedShareOutOfUnderflow) {
  ExpectFactors({{{1e-5f, 2e-6}, {"use_bound=false"}, 16},
                 {{1e-5f, 2e-6}, {"use_bound=false", "n_uf=0.5"}, 1},
                 {{1e-7f, 1e-9}, {"use_bound=false"}, 0x1p15},
                 {{1e-6f, 3e-6}, {"use_bound=false", "power_of_two=false"}, 0x1.fecp+3},
                 {{1e-12f, 1e-13}, {"use_bound=false"}, std::numeric_limits<double>::infinity()}});
}

TEST(AdaLoss, StopsAtTheLargestMagnitude) {
  ExpectFactors({{{30, 1e-8}, {"use_bound=false"}, 2048},
                 {{30, 1e-8}, {"use_bound=false", "power_of_two=false"}, 2184}});
}

TEST(AdaLoss, BoundsFactorsAsTheCodeDoes) {
  ExpectFactors({{{1e-7f, 1e-9}, {}, 16},
                 {{1e-5f, 1e-9}, {"scale_upper_bound=100"}, 64},
                 {{1e-5f, 1e-9}, {"scale_upper_bound=2048"}, 1024},
                 {{1e-5f, 1e-9}, {"scale_upper_bound=2048", "accum_upper_bound=300"}, 256}});
}

TEST(AdaLoss, StartsAtOneAndForgetsTheGradientBefore) {
  LossScaler scaler = MakePolicy("adaloss").scaler;
  EXPECT_TRUE(scaler.looks_ahead());
  EXPECT_EQ(scaler.scale(), 1);
  scaler.Prepare({.absmax = 1e-7f, .standard_deviation = 1e-9});
  EXPECT_EQ(scaler.scale(), 16);
  EXPECT_FALSE(scaler.Next({.overflow = true}).skip);
  EXPECT_EQ(scaler.scale(), 16);
  scaler.Prepare({.absmax = 1, .standard_deviation = 1});
  EXPECT_EQ(scaler.scale(), 1);
}

TEST(AdaLoss, HasAFactorForEachTensor) {
  EXPECT_EQ(FindPolicy("adaloss").rules.granularity, ScaleGranularity::kTensor);
  EXPECT_EQ(FindPolicy("adaloss").checkpoint, Kept::kNothing);
}

TEST(AdaLoss, RefusesWhatTheRuleCannotTake) {
  for (const std::string setting :
       {"n_uf=0", "n_uf=1", "n_uf=-1", "u_min=0", "u_max=-1", "u_min=2^-200", "scale_upper_bound=0",
        "accum_upper_bound=x", "use_bound=maybe"}) {
    EXPECT_NE(UsageMessage("adaloss", {setting}), "") << setting;
  }
}

TEST(AdaLoss, NotesLimitsThatMaySurprise) {
  EXPECT_EQ(MakePolicy("adaloss", {}, "fp16").notes.size(), 1u);
  EXPECT_NE(MakePolicy("adaloss").notes.at(0).find("scale_upper_bound"), std::string::npos);
  EXPECT_NE(MakePolicy("adaloss", {}, "bf16").notes.at(0).find("limits of fp16"),
            std::string::npos);
  EXPECT_NE(MakePolicy("adaloss", {"use_bound=false"}).notes.at(0).find("infinite"),
            std::string::npos);
}

}  // namespace
}  // namespace dlsim::sim
