// SPDX-License-Identifier: Apache-2.0
#include "sim/base/parse.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "src/base/text.h"

namespace dlsim::sim {
namespace {

constexpr std::string_view kNames[] = {"static", "cerebras", "cerebras-tf", "torch"};
constexpr std::string_view kAliases[] = {"torch_new"};

TEST(Suggest, FindsTheNearestName) {
  EXPECT_EQ(Suggest("torhc", kNames), "torch");
  EXPECT_EQ(Suggest("cerebra", kNames), "cerebras");
  EXPECT_EQ(Suggest("cerebras_tf", kNames), "cerebras-tf");
}

TEST(Suggest, CaseDoesNotCount) {
  EXPECT_EQ(Suggest("TORCH", kNames), "torch");
  EXPECT_EQ(Suggest("Cerebras-TF", kNames), "cerebras-tf");
  EXPECT_TRUE(EqualsIgnoringCase("Fp16", "fP16"));
  EXPECT_FALSE(EqualsIgnoringCase("fp16", "fp1"));
}

TEST(Suggest, KnowsCommonWords) {
  constexpr std::string_view kRoundings[] = {"rne", "rtz", "rna", "ru", "rd", "sr"};
  EXPECT_EQ(Suggest("nearest", kRoundings), "rne");
  EXPECT_EQ(Suggest("Stochastic", kRoundings), "sr");
  EXPECT_EQ(Suggest("nearest", kNames), "");
}

TEST(Suggest, IsSilentWhenNothingIsNear) {
  EXPECT_EQ(Suggest("lossless", kNames), "");
  EXPECT_EQ(Suggest("", kNames), "");
  EXPECT_EQ(Suggest(std::string(100000, 'x'), kNames), "");
}

TEST(Suggest, AProblemTellsWhatWasMeantAmongNamesAndAliases) {
  EXPECT_EQ(WithSuggestion("unknown name", "torch_ne", kNames, kAliases),
            "unknown name (did you mean 'torch_new'?)");
  EXPECT_EQ(WithSuggestion("unknown name", "?", kNames, kAliases), "unknown name");
  EXPECT_EQ(OneOf(kNames), "one of static, cerebras, cerebras-tf, torch");
}

}  // namespace
}  // namespace dlsim::sim
