// SPDX-License-Identifier: Apache-2.0
#include "dlsim/error.h"

#include <gtest/gtest.h>

#include <string>

namespace dlsim {
namespace {

TEST(Error, ReadsAsPlaceProblemExpectedGot) {
  EXPECT_STREQ(InputError("g.npy", "bad shape", "(2, 3)", "(3, 2)").what(),
               "g.npy: bad shape, expected (2, 3), got (3, 2)");
  EXPECT_STREQ(InputError("g.npy", "cannot be read").what(), "g.npy: cannot be read");
}

TEST(Error, KindIsTheExitCode) {
  EXPECT_EQ(static_cast<int>(InputError("", "x").kind()), 3);
  EXPECT_EQ(static_cast<int>(UsageError("", "x").kind()), 2);
}

TEST(Printable, KeepsTextAndEscapesTheRest) {
  EXPECT_EQ(Printable("blocks.0.attn.qkv.bias.grad"), "blocks.0.attn.qkv.bias.grad");
  EXPECT_EQ(Printable("\xC3\xA9"), "\xC3\xA9");
  EXPECT_EQ(Printable("a\nb\xFF\"\x1B[2J"), "a\\x0ab\\xff\\x22\\x1b[2J");
}

TEST(Printable, EscapesMalformedUtf8) {
  EXPECT_EQ(Printable("\xC3"), "\\xc3");
  EXPECT_EQ(Printable("\xE0\x80\x80"), "\\xe0\\x80\\x80") << "overlong";
  EXPECT_EQ(Printable("\xED\xA0\x80"), "\\xed\\xa0\\x80") << "surrogate";
}

TEST(Printable, CutsLongText) {
  const std::string cut = Printable(std::string(100000, 'x'));
  EXPECT_EQ(cut, std::string(256, 'x') + "...");
}

}  // namespace
}  // namespace dlsim
