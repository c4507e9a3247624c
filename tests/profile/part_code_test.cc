// SPDX-License-Identifier: Apache-2.0
#include "src/profile/part_code.h"

#include <gtest/gtest.h>

#include <vector>

#include "dlsim/error.h"

namespace dlsim {
namespace {

using Parts = std::vector<std::optional<ProfilePart>>;

TEST(PartCode, IsReadAsItWasWritten) {
  for (const ProfilePart& part : {ProfilePart{10, {}}, ProfilePart{10, {{0, 9}}},
                                  ProfilePart{1000, {{3, 100}, {500, 1}, {998, 2}}}}) {
    EXPECT_EQ(DecodePart("p", EncodePart(part)), part);
  }
}

TEST(PartCode, RefusesWhatNoPartIs) {
  for (const ProfilePart& part :
       {ProfilePart{10, {{0, 10}}}, ProfilePart{10, {{5, 6}}}, ProfilePart{10, {{5, 0}}},
        ProfilePart{10, {{4, 1}, {2, 1}}}, ProfilePart{10, {{2, 2}, {4, 1}}}}) {
    EXPECT_THROW(DecodePart("p", EncodePart(part)), Error);
  }
  EXPECT_THROW(DecodePart("p", EncodePart({10, {{0, 1}}}) + "x"), Error);
  EXPECT_THROW(DecodePart("p", ""), Error);
}

TEST(PartCode, PartsThatAreTheWholeTogetherAreNone) {
  const ProfilePart first = {10, {{0, 4}}}, second = {10, {{4, 6}}}, none = {10, {}};
  EXPECT_EQ(JoinParts(Parts{first, second}), std::nullopt);
  EXPECT_EQ(JoinParts(Parts{second, none, first}), std::nullopt);
  EXPECT_EQ(JoinParts(Parts{first, none}), first);
  EXPECT_EQ(JoinParts(Parts{first, std::nullopt}), std::nullopt);  // not known
  EXPECT_EQ(JoinParts(Parts{first, ProfilePart{10, {{2, 3}, {8, 2}}}}),
            (ProfilePart{10, {{0, 5}, {8, 2}}}));
  EXPECT_EQ(JoinParts(Parts{first, ProfilePart{12, {{4, 6}}}}), (ProfilePart{12, {{0, 10}}}));
}

TEST(PartCode, NamesTheFirstStepsThatAreMissing) {
  EXPECT_EQ(MissingSteps({10, {{0, 4}}}), "steps 5 to 10 of 10 (counted from 1)");
  EXPECT_EQ(MissingSteps({10, {{1, 4}}}), "step 1 of 10 (counted from 1)");
  EXPECT_EQ(MissingSteps({10, {{0, 2}, {4, 1}}}), "steps 3 to 4 of 10 (counted from 1)");
}

}  // namespace
}  // namespace dlsim
