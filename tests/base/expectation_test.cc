// SPDX-License-Identifier: Apache-2.0
// What --expect reads and when it holds.
#include "sim/base/expectation.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "dlsim/error.h"

namespace dlsim::sim {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool HoldsFor(const std::string& text, std::optional<double> found) {
  return Holds(ParseExpectation(text, "--expect"), found);
}

TEST(Expectation, ReadsFigureRelationAndNumber) {
  const Expectation plain = ParseExpectation("skipped_steps<=3", "--expect");
  EXPECT_EQ(plain.figure, "skipped_steps");
  EXPECT_EQ(plain.relation, Relation::kAtMost);
  EXPECT_EQ(plain.limit, 3);
  EXPECT_TRUE(plain.subject.empty());
  const Expectation about = ParseExpectation(" fp16/*: final_scale >= 2^15 ", "--expect");
  EXPECT_EQ(about.subject, "fp16/*");
  EXPECT_EQ(about.figure, "final_scale");
  EXPECT_EQ(about.limit, 32768);
  EXPECT_EQ(ParseExpectation("a<0x1p3", "--expect").limit, 8);
  EXPECT_EQ(ParseExpectation("a!=-2e15", "--expect").limit, -2e15);
  EXPECT_EQ(ParseExpectation("a==none", "--expect").limit, std::nullopt);
}

TEST(Expectation, RefusesWhatIsNone) {
  for (const char* text : {"", "skipped_steps", "<=3", "a=3", "a!3", "a<=", "a<b", "a<none",
                           "a<nan", "fp16/torch:<3", "a<=>3", "a<3<4"}) {
    try {
      ParseExpectation(text, "--expect");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage) << text;
      EXPECT_TRUE(std::string(error.what()).starts_with("--expect: ")) << error.what();
    }
  }
}

TEST(Expectation, EachRelationIsItsOwn) {
  struct Row {
    const char* relation;
    bool below, at, above;
  };
  for (const Row& row : {Row{"<", true, false, false}, Row{"<=", true, true, false},
                         Row{">", false, false, true}, Row{">=", false, true, true},
                         Row{"==", false, true, false}, Row{"!=", true, false, true}}) {
    const std::string text = std::string("a") + row.relation + "3";
    EXPECT_EQ(HoldsFor(text, 2), row.below) << text;
    EXPECT_EQ(HoldsFor(text, 3), row.at) << text;
    EXPECT_EQ(HoldsFor(text, 4), row.above) << text;
  }
}

TEST(Expectation, WhatHasNoValueMeetsNoNumber) {
  for (const char* relation : {"<", "<=", ">", ">=", "=="}) {
    EXPECT_FALSE(HoldsFor(std::string("a") + relation + "3", std::nullopt)) << relation;
    EXPECT_FALSE(HoldsFor(std::string("a") + relation + "3", kNan)) << relation;
  }
  EXPECT_FALSE(HoldsFor("a!=3", std::nullopt));
  EXPECT_TRUE(HoldsFor("a!=3", kNan));
  EXPECT_TRUE(HoldsFor("a==none", std::nullopt));
  EXPECT_FALSE(HoldsFor("a!=none", std::nullopt));
  EXPECT_FALSE(HoldsFor("a==none", 0));
  EXPECT_TRUE(HoldsFor("a!=none", 0));
  EXPECT_TRUE(HoldsFor("a>2^1000", kInfinity));
}

TEST(Expectation, AnUnknownFigureIsAnsweredWithTheNearest) {
  const Expectation expectation = ParseExpectation("skiped_steps<3", "--expect");
  try {
    RequireFigure(expectation, {"steps", "skipped_steps"}, "--expect");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'skipped_steps'?"), std::string::npos);
  }
}

TEST(Expectation, AnOutcomeSaysRunFigureAndWhatWasExpected) {
  const Expectation expectation = ParseExpectation("harm<0.01", "--expect");
  const std::vector<Figure> figures = {{"harm", 0.5}};
  const ExpectationOutcome outcome = CheckExpectation(expectation, "fp16/torch", figures);
  EXPECT_EQ(OutcomeText(outcome), "fp16/torch: harm is 0.5, expected harm<0.01");
  EXPECT_EQ(JsonText(std::span(&outcome, 1)),
            R"([{"run":"fp16/torch","expression":"harm<0.01","found":0.5,"holds":false}])");
  EXPECT_EQ(OutcomeText(CheckExpectation(expectation, "", {})), "harm is none, expected harm<0.01");
}

}  // namespace
}  // namespace dlsim::sim
