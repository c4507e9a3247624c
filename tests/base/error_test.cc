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

TEST(Printable, EscapesWhatControlsTheTerminal) {
  EXPECT_EQ(Printable("\xC2\x80|\xC2\x9B|\xC2\x9F"), "\\xc2\\x80|\\xc2\\x9b|\\xc2\\x9f") << "C1";
  EXPECT_EQ(Printable("\xE2\x80\xA8|\xE2\x80\xA9"), "\\xe2\\x80\\xa8|\\xe2\\x80\\xa9")
      << "separators";
  for (const std::string last : {"\x8E", "\x8F", "\xAA", "\xAB", "\xAC", "\xAD", "\xAE"}) {
    EXPECT_TRUE(Printable("\xE2\x80" + last).starts_with("\\xe2\\x80\\x")) << "bidi";
  }
  for (const std::string last : {"\xA6", "\xA7", "\xA8", "\xA9"}) {
    EXPECT_TRUE(Printable("\xE2\x81" + last).starts_with("\\xe2\\x81\\x")) << "bidi isolates";
  }
  for (const char* text : {"\xC2\xA0", "\xC3\x80", "\xE2\x80\xA7", "\xE2\x80\xAF", "\xE2\x81\xA5",
                           "\xE2\x81\xAA", "\xF0\x9F\x98\x80"}) {
    EXPECT_EQ(Printable(text), text);
  }
}

TEST(Printable, EscapesWhatIsNotSeen) {
  EXPECT_EQ(Printable("a\xC2\xAD") + Printable("\xD8\x9C"), "a\\xc2\\xad\\xd8\\x9c");
  for (const std::string last : {"\x8B", "\x8C", "\x8D"}) {
    EXPECT_TRUE(Printable("\xE2\x80" + last).starts_with("\\xe2\\x80\\x8")) << "zero width";
  }
  EXPECT_EQ(Printable("\xE2\x81\xA0"), "\\xe2\\x81\\xa0") << "word joiner";
  EXPECT_EQ(Printable("\xEF\xBB\xBF"), "\\xef\\xbb\\xbf") << "byte order mark";
  EXPECT_EQ(Printable("\xF3\xA0\x81\x81"), "\\xf3\\xa0\\x81\\x81") << "tag";
}

TEST(Printable, CutsLongText) {
  const std::string cut = Printable(std::string(100000, 'x'));
  EXPECT_EQ(cut, std::string(256, 'x') + "...");
}

}  // namespace
}  // namespace dlsim
