// SPDX-License-Identifier: Apache-2.0
// YAML, JSON and TOML as one tree: what values mean, and files that are refused.
#include "sim/config/config_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "tests/support/trace_test_util.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

ConfigNode Yaml(std::string_view text) { return ParseConfig("f", text, ConfigLanguage::kYaml); }
ConfigNode Json(std::string_view text) { return ParseConfig("f", text, ConfigLanguage::kJson); }
ConfigNode Toml(std::string_view text) { return ParseConfig("f", text, ConfigLanguage::kToml); }

// A tree on one line: {key:number, key:'text', key:[...]}.
std::string Show(const ConfigNode& node) {
  if (node.kind == Kind::kText) return "'" + node.text + "'";
  if (node.kind != Kind::kList && node.kind != Kind::kTable) return node.text;
  std::string text;
  for (const ConfigEntry& entry : node.entries) {
    text +=
        (text.empty() ? "" : ", ") + (entry.key.empty() ? "" : entry.key + ":") + Show(entry.value);
  }
  return node.kind == Kind::kList ? "[" + text + "]" : "{" + text + "}";
}

// Expects wrong usage on one line that has all `words`.
void ExpectRefused(std::string_view text, ConfigLanguage language,
                   const std::vector<std::string>& words) {
  try {
    ParseConfig("f", text, language);
    ADD_FAILURE() << "accepted " << text.substr(0, 80);
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_EQ(error.kind(), ErrorKind::kUsage) << what;
    EXPECT_EQ(what.find('\n'), what.npos) << what;
    EXPECT_LT(what.size(), 600u) << what;
    for (const std::string& word : words) EXPECT_NE(what.find(word), what.npos) << what;
  }
}

std::string Repeat(std::string_view text, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

TEST(ConfigFile, AllLanguagesGiveTheSameTree) {
  const std::string tree = "{a:{b:1, c:'x', d:true}, e:[1.5, 'y']}";
  EXPECT_EQ(Show(Yaml("a:\n  b: 1\n  c: x\n  d: true\ne:\n- 1.5\n- y\n")), tree);
  EXPECT_EQ(Show(Json(R"({"a": {"b": 1, "c": "x", "d": true}, "e": [1.5, "y"]})")), tree);
  EXPECT_EQ(Show(Toml("a.b = 1\na.c = 'x'\na.d = true\ne = [1.5, 'y']\n")), tree);
}

TEST(ConfigFile, YamlNumbersKeepTheirTextAndMayLackAPoint) {
  EXPECT_EQ(Show(Yaml("a: 1e-3\nb: 1.0e-05\nc: -2\nd: +3.\ne: .5\nf: 1_000\ng: 0x10\nh: 0.10\n")),
            "{a:1e-3, b:1.0e-05, c:-2, d:+3., e:.5, f:1000, g:0x10, h:0.10}");
  // .inf and .nan are numbers, which every reader then refuses.
  EXPECT_EQ(Show(Yaml("a: .inf\nb: -.INF\nc: .nan\n")), "{a:.inf, b:-.INF, c:.nan}");
  // 010 is octal in YAML 1.1, and 1e, 2^15, 1.2.3 are no numbers at all.
  EXPECT_EQ(Show(Yaml("a: 010\nb: 1e\nc: 2^15\nd: 1.2.3\ne: _1\nf: '1'\ng: !!str 1\nh: .\n")),
            "{a:'010', b:'1e', c:'2^15', d:'1.2.3', e:'_1', f:'1', g:'1', h:'.'}");
}

TEST(ConfigFile, YamlTruthAndNullAreThoseOfPyYaml) {
  EXPECT_EQ(Show(Yaml("a: True\nb: no\nc: ON\nd: 'true'\ne: tRue\nf: ~\ng:\nh: null\n")),
            "{a:true, b:false, c:true, d:'true', e:'tRue', f:null, g:null, h:null}");
}

TEST(ConfigFile, YamlAliasesAndMergeKeysAreFilledIn) {
  EXPECT_EQ(Show(Yaml("a: &x {b: 1, c: 2}\nd: *x\n")), "{a:{b:1, c:2}, d:{b:1, c:2}}");
  // Own keys win, then the earlier of several tables.
  EXPECT_EQ(Show(Yaml("a: &x {b: 1, c: 2}\nd: &y {b: 5, e: 6}\nf: {<<: [*x, *y], c: 9}\n")),
            "{a:{b:1, c:2}, d:{b:5, e:6}, f:{c:9, b:1, e:6}}");
  EXPECT_EQ(Show(Yaml("f:\n  <<: {a: 1}\n")), "{f:{a:1}}");
  ExpectRefused("f: {<<: 1}\n", ConfigLanguage::kYaml, {"f:1: ", "merge key"});
  ExpectRefused("f: {<<: [1]}\n", ConfigLanguage::kYaml, {"f:1: ", "merge key"});
}

TEST(ConfigFile, SeveralYamlMergeKeysAreRefused) {
  ExpectRefused("a: &a {x: 1}\nb: &b {y: 2}\nc:\n  <<: *a\n  <<: *b\n", ConfigLanguage::kYaml,
                {"several merge keys <<"});
}

// A text in triple quotes may end in quotes of its own, after which keys go on.
TEST(ConfigFile, DottedTomlKeysAreLimitedAfterAnyText) {
  const std::string dots = Repeat("b.", 200'000) + "b = 1 }\n";
  for (const char* text :
       {"\"\"\"a\"\"\"", "\"\"\"a\"\"\"\"", "\"\"\"a\"\"\"\"\"", "'''a''''", "\"\"", "'a'"}) {
    ExpectRefused(std::string("x = { k = ") + text + ", " + dots, ConfigLanguage::kToml,
                  {"nested too deeply"});
  }
  EXPECT_EQ(Show(Toml("a = \"\"\"b\"\"\"\"\"\nc.d = 1\n")), "{a:'b\"\"', c:{d:1}}");
}

TEST(ConfigFile, LinesAreCounted) {
  EXPECT_EQ(Yaml("# c\na:\n  b: 1\n").Find("a")->Find("b")->line, 3);
  EXPECT_EQ(Toml("# c\n[a]\nb = 1\n").Find("a")->Find("b")->line, 3);
  EXPECT_EQ(Json("{\"a\":\n1}").Find("a")->line, 0);  // its parser does not say
}

TEST(ConfigFile, AKeyGivenTwiceIsRefused) {
  // YAML leaves it to who reads the key.
  EXPECT_EQ(Show(Yaml("a: 1\nb: 2\na: 3\n")), "{a:1, b:2, a:3}");
  ExpectRefused(R"({"x": {"a": 1, "a": 1}})", ConfigLanguage::kJson, {"duplicate key 'a'"});
  ExpectRefused("a = 1\na = 2\n", ConfigLanguage::kToml, {"f:2: bad TOML"});
}

TEST(ConfigFile, BadSyntaxIsRefusedOnOneLine) {
  ExpectRefused("a: [1\nb: 2\n", ConfigLanguage::kYaml, {"f:2: bad YAML: "});
  ExpectRefused("a: *b\n", ConfigLanguage::kYaml, {"f:1: bad YAML: ", "anchor"});
  ExpectRefused("a: &x [*x]\n", ConfigLanguage::kYaml, {"f:1: bad YAML: ", "alias"});
  ExpectRefused("a: 1\n---\nb: 1\n", ConfigLanguage::kYaml, {"more than one YAML document"});
  ExpectRefused("? [a]\n: 1\n", ConfigLanguage::kYaml, {"f:1: bad key"});
  ExpectRefused("{\"a\": 1 2}", ConfigLanguage::kJson, {"f: bad JSON: ", "line 1, column 9"});
  ExpectRefused("{\"a\":\n x}", ConfigLanguage::kJson, {"line 2, column 2", "last read: '\"a\":"});
  ExpectRefused("{\"a\": 1e999}", ConfigLanguage::kJson, {"bad JSON: number overflow"});
  ExpectRefused("{\"a\": NaN}", ConfigLanguage::kJson, {"bad JSON: "});
  ExpectRefused("a = \n", ConfigLanguage::kToml, {"f:1: bad TOML: "});
  for (const ConfigLanguage language : {ConfigLanguage::kYaml, ConfigLanguage::kJson}) {
    ExpectRefused("[1, 2]", language, {"not a configuration"});
  }
  ExpectRefused("", ConfigLanguage::kYaml, {"not a configuration"});
  ExpectRefused(std::string_view("a: 1\0b", 6), ConfigLanguage::kYaml, {"not a text file"});
}

TEST(ConfigFile, JsonMayHaveCommentsAndLastCommas) {
  EXPECT_EQ(Show(Json("{ // x\n\"a\": [1, 2, ], # y\n/* \" */ \"b\": {\"c\": 3, /*,*/ },\n}\n")),
            "{a:[1, 2], b:{c:3}}");
  // Not in a text.
  EXPECT_EQ(Show(Json(R"({"a": "1,]", "b": "#//", "c": "/*", "d": "\",}"})")),
            R"({a:'1,]', b:'#//', c:'/*', d:'",}'})");
  ExpectRefused("{,}", ConfigLanguage::kJson, {"bad JSON: "});
  ExpectRefused("{\"a\": 1,, }", ConfigLanguage::kJson, {"line 1, column 9"});
  ExpectRefused("{\"a\": 1 /* }", ConfigLanguage::kJson, {"line 1, column 9"});
}

TEST(ConfigFile, YamlErrorsNameTheLine) {
  const auto refuse = [](std::string_view text, const std::string& message) {
    ExpectRefused(text, ConfigLanguage::kYaml, {"f:" + message});
  };
  refuse("a:\n  b 1\n  c: 2\n", "3: bad YAML: illegal map value");
  refuse("a:\n  b: 1\n c: 2\n", "3: bad YAML: end of map not found");
  refuse("a:\n\tb: 1\n", "2: bad YAML: illegal map value");
  refuse("a: 1\n<<<<<<< HEAD\nb: 1\n=======\nb: 2\n>>>>>>> x\n", "3: bad YAML: illegal map value");
  refuse("a: @b\n", "1: bad YAML: unknown token");
  // The parser takes them for closed at the end of the file.
  refuse("a: 1\nb: \"c\nd: 2\n", "2: bad YAML: a quote that is not closed");
  refuse("a: 1\nb: 'it''s\nd: 2\n", "2: bad YAML: a quote that is not closed");
  refuse("a: 1\n\"b: 2\n", "2: bad YAML: ");
  EXPECT_EQ(Show(Yaml("a: 'it''s'\nb: \"c\\\"d\"\n")), "{a:'it's', b:'c\"d'}");
}

TEST(ConfigFile, YamlMayEndWithLinesOfTextOrAnAnchoredQuote) {
  EXPECT_EQ(Show(Yaml("a: |\n  some \"text\n")), "{a:'some \"text\n'}");
  EXPECT_EQ(Show(Yaml("a: >-\n  it's\n  text\n")), "{a:'it's text'}");
  EXPECT_EQ(Show(Yaml("a: &b \"c\"\n")), "{a:'c'}");
  EXPECT_EQ(Show(Yaml("a: !local &b 'c'\n")), "{a:'c'}");
  ExpectRefused("a: &b \"c\n", ConfigLanguage::kYaml, {"f:1: bad YAML: a quote"});
}

TEST(ConfigFile, PipesAreRead) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string text = "a = 1\n";
  ASSERT_EQ(write(ends[1], text.data(), text.size()), 6);
  close(ends[1]);
  EXPECT_EQ(Show(ReadConfigFile("/dev/fd/" + std::to_string(ends[0]))), "{a:1}");
  close(ends[0]);
}

TEST(ConfigFile, YamlBombsAreRefused) {
  std::string bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n";
  for (char name = 'b'; name <= 'j'; ++name) {
    const std::string previous = "*" + std::string(1, static_cast<char>(name - 1));
    bomb +=
        std::string(1, name) + ": &" + name + " [" + Repeat(previous + ", ", 8) + previous + "]\n";
  }
  ExpectRefused(bomb, ConfigLanguage::kYaml, {"f:5: too many values", "20000"});
  std::string deep = "a0: &a0 [x]\n";
  for (int i = 1; i < 100; ++i) {
    const std::string number = std::to_string(i);
    deep += "a" + number + ": &a" + number + " [*a" + std::to_string(i - 1) + "]\n";
  }
  ExpectRefused(deep, ConfigLanguage::kYaml, {"nested too deeply", "64"});
}

// Few values, each of them long: 15,000 times 200 kB.
TEST(ConfigFile, AliasesOfLongTextsAreRefused) {
  const std::string text(200'000, 'x');
  ExpectRefused("a: &a " + text + "\nb:\n" + Repeat("- *a\n", 15'000), ConfigLanguage::kYaml,
                {"too much text", "4194304 bytes"});
  ExpectRefused("a: &a {" + Repeat("k", 1000) + ": 1}\nb:\n" + Repeat("- *a\n", 15'000),
                ConfigLanguage::kYaml, {"too much text"});
  EXPECT_NO_THROW(Yaml("a: &a " + text + "\nb: *a\n"));
}

TEST(ConfigFile, LongTextsAreRefusedInEveryLanguage) {
  const std::string text(5 << 20, 'x');
  ExpectRefused("a: " + text, ConfigLanguage::kYaml, {"too much text"});
  ExpectRefused("{\"a\": \"" + text + "\"}", ConfigLanguage::kJson, {"too much text"});
  ExpectRefused("a = '" + text + "'", ConfigLanguage::kToml, {"too much text"});
}

TEST(ConfigFile, DepthAndSizeAreLimited) {
  const auto nested = [](size_t lists) { return Repeat("[", lists) + Repeat("]", lists); };
  EXPECT_NO_THROW(Yaml("a: " + nested(63)));
  EXPECT_NO_THROW(Json("{\"a\":" + nested(63) + "}"));
  EXPECT_NO_THROW(Toml("a = " + nested(63)));
  EXPECT_NO_THROW(Toml(Repeat("a.", 62) + "a = 1"));
  ExpectRefused("a: " + nested(64), ConfigLanguage::kYaml, {"nested too deeply"});
  ExpectRefused("{\"a\":" + nested(64) + "}", ConfigLanguage::kJson, {"nested too deeply"});
  ExpectRefused("a = " + nested(64), ConfigLanguage::kToml, {"nested too deeply"});
  ExpectRefused(Repeat("a.", 500'000) + "a = 1", ConfigLanguage::kToml, {"nested too deeply"});
  ExpectRefused("x = {" + Repeat("a.", 64) + "a = 1}", ConfigLanguage::kToml, {"too deeply"});
  EXPECT_NO_THROW(Toml("a = '" + Repeat(".", 100) + "' # " + Repeat(".", 100)));
  EXPECT_NO_THROW(Toml("a = \"\"\"\n\\\"" + Repeat(".", 100) + "\"\"\"\n"));
  ExpectRefused(Repeat("- a\n", 20'001), ConfigLanguage::kYaml, {"too many values"});
}

TEST(ConfigFile, TheLanguageIsGuessed) {
  EXPECT_EQ(GuessLanguage("a.yaml", "{"), ConfigLanguage::kYaml);
  EXPECT_EQ(GuessLanguage("a.yml", "{"), ConfigLanguage::kYaml);
  EXPECT_EQ(GuessLanguage("a.json", "a: 1"), ConfigLanguage::kJson);
  EXPECT_EQ(GuessLanguage("a.toml", "{"), ConfigLanguage::kToml);
  EXPECT_EQ(GuessLanguage("a", "\n # c\n {\"a\": 1}"), ConfigLanguage::kJson);
  EXPECT_EQ(GuessLanguage("a", "# c\n\n[a.b]\n"), ConfigLanguage::kToml);
  EXPECT_EQ(GuessLanguage("a", "a = 'b'\n"), ConfigLanguage::kToml);
  EXPECT_EQ(GuessLanguage("a", "a: b = c\n"), ConfigLanguage::kYaml);
  EXPECT_EQ(GuessLanguage("a", ""), ConfigLanguage::kYaml);
}

TEST(ConfigFile, FilesThatCannotBeReadAreBadInput) {
  const TempDir dir;
  const std::string large = dir.Write("large.yaml", Repeat("# comment\n", 110'000));
  for (const std::string& path : {dir.path(), dir.path() + "/none", large}) {
    try {
      ReadConfigFile(path);
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput) << error.what();
    }
  }
  EXPECT_EQ(Show(ReadConfigFile(dir.Write("a.toml",
                                          "\xEF\xBB\xBF"
                                          "a = 1\n"))),
            "{a:1}");
}

}  // namespace
}  // namespace dlsim::sim
