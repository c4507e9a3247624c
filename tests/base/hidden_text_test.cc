// SPDX-License-Identifier: Apache-2.0
// Names from files do no harm where results are read: in a terminal, a table, a spreadsheet.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "dlsim/error.h"
#include "sim/base/rows.h"

namespace dlsim::sim {
namespace {

// ESC, DEL, C1, soft hyphen, bidirectional and zero-width characters, a tag.
const std::string kHidden[] = {"\x1b",         "\x7f",         "\xC2\x9B",     "\xC2\xAD",
                               "\xD8\x9C",     "\xE2\x80\x8B", "\xE2\x80\x8D", "\xE2\x80\xAE",
                               "\xE2\x81\xA0", "\xE2\x81\xA7", "\xEF\xBB\xBF", "\xF3\xA0\x81\x81"};

TEST(HiddenText, IsEscapedAlikeInTextAndCsv) {
  for (const std::string& hidden : kHidden) {
    const std::string name = "a" + hidden + "b";
    const std::string shown = Printable(name);
    EXPECT_TRUE(shown.starts_with("a\\x") && shown.ends_with("b")) << shown;
    EXPECT_EQ(shown.find(hidden), std::string::npos) << shown;
    EXPECT_EQ(CsvField(name), shown);
  }
}

TEST(HiddenText, IsEscapedInJsonAndMeansTheSame) {
  for (const std::string& hidden : kHidden) {
    const std::map<std::string, std::string> value = {{"k" + hidden, "a" + hidden + "b"}};
    const std::string text = JsonText(value);
    EXPECT_EQ(text.find(hidden), std::string::npos) << text;
    EXPECT_NE(text.find("\\u"), std::string::npos) << text;
    EXPECT_EQ(nlohmann::json::parse(text), nlohmann::json(value));
  }
  EXPECT_EQ(JsonText(std::string("\xC3\xA9 \xE2\x82\xAC")), "\"\xC3\xA9 \xE2\x82\xAC\"");
}

TEST(CsvField, QuotesWhatRfc4180Asks) {
  EXPECT_EQ(CsvField("blocks.0.weight.grad"), "blocks.0.weight.grad");
  EXPECT_EQ(CsvField("a,b"), "\"a,b\"");
  EXPECT_EQ(CsvField("a\"b"), "\"a\"\"b\"");
  EXPECT_EQ(CsvField("a\r\nb"), "a\\x0d\\x0ab");
}

TEST(CsvField, IsNoFormula) {
  EXPECT_EQ(CsvField("=1+1"), "'=1+1");
  EXPECT_EQ(CsvField("@SUM(A1)"), "'@SUM(A1)");
  EXPECT_EQ(CsvField("+cmd|' /C calc'!A0"), "'+cmd|' /C calc'!A0");
  EXPECT_EQ(CsvField("-2+3"), "'-2+3");
  EXPECT_EQ(CsvField("=A1,B1"), "\"'=A1,B1\"");
  for (const char* number : {"-1", "-1e-05", "-inf", "2^-3", ""}) {
    EXPECT_EQ(CsvField(number), number);
  }
}

}  // namespace
}  // namespace dlsim::sim
