// SPDX-License-Identifier: Apache-2.0
// What rows become: JSON, CSV, figures and tables of keys.
#include "sim/base/rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dlsim::sim {
namespace {

enum class Color : uint8_t { kNone, kRed };
constexpr auto EnumNames(Color) { return std::to_array<EnumName<Color>>({{Color::kRed, "red"}}); }

struct Part {
  uint64_t count = 0;
  double mean = 0;
};
constexpr bool IsNone(const Part& part) { return part.count == 0; }
void Rows(const Part& part, RowSink& row) {
  row("count", part.count, "of all");
  row("mean", part.mean, "of them");
}

struct Ends {
  int low, high;
};
auto ShownAs(const Ends& ends) { return std::pair(ends.low, ends.high); }

struct Whole {
  std::string name = "a\"b";
  Color color = Color::kRed;
  bool sure = true;
  float small = 0.5f;
  double large = HUGE_VAL;
  std::optional<int> step = {};
  Part own = {2, 0.25}, other = {};
  Ends ends = {-1, 1};
  std::vector<Part> parts = {{1, 1}, {2, 2}};
  std::map<std::string, int> named = {{"x", 1}};
  std::vector<NamedValue> fields = {{"start", 8.0}, {"kind", std::string("fixed")}};
};

void Rows(const Whole& of, RowSink& row) {
  row("name", of.name, "a text");
  row("color", of.color, "or nothing", kLeftOutIfEmpty);
  row("sure", of.sure);
  row("small", of.small, "a number");
  row("large", of.large);
  row("step", of.step, "an integer");
  row.Group(of.own);
  row("other", of.other, "a part");
  row("ends", of.ends, "two");
  row("parts", of.parts, "a list", kOnLines);
  row("named", of.named);
  row("fields", of.fields);
}

TEST(Rows, BecomeJsonInOrder) {
  EXPECT_EQ(JsonText(Whole()),
            R"({"name":"a\"b","color":"red","sure":true,"small":0.5,"large":"inf","step":null,)"
            R"("count":2,"mean":0.25,"other":null,"ends":[-1,1],)"
            "\n"
            R"("parts":[)"
            "\n"
            R"({"count":1,"mean":1.0},)"
            "\n"
            R"({"count":2,"mean":2.0}],"named":{"x":1},"fields":{"start":8.0,"kind":"fixed"}})");
}

TEST(Rows, OfWhatIsMissingAreNullOrLeftOut) {
  Whole whole = {.color = Color::kNone, .own = {}, .parts = {}, .named = {}, .fields = {}};
  EXPECT_EQ(JsonText(whole),
            R"({"name":"a\"b","sure":true,"small":0.5,"large":"inf","step":null,"count":null,)"
            R"("mean":null,"other":null,"ends":[-1,1],)"
            "\n"
            R"("parts":[],"named":{},"fields":{}})");
}

TEST(Rows, CanBeToldOfEachItem) {
  const Whole whole;
  const auto counts = [](const Part& part, RowSink& row) { row("count", part.count); };
  const auto rows = [&](RowSink& row) {
    row.List("parts", "", whole.parts, counts);
    row.List("none", "", std::vector<Part>(), counts, kLeftOutIfEmpty);
    row.ObjectIf(whole.step, "step", "", [](int step, RowSink& of) { of("is", step); });
  };
  EXPECT_EQ(JsonText(rows), R"({"parts":[{"count":1},{"count":2}],"step":null})");
}

TEST(Rows, ThatAreNumbersOrTextsBecomeCsv) {
  const auto rows = [](RowSink& row) { Rows(Whole(), row); };
  EXPECT_EQ(CsvNames(rows), "name,color,sure,small,large,step,count,mean");
  EXPECT_EQ(CsvValues(rows), "\"a\"\"b\",red,1,0.5,inf,,2,0.25");
}

TEST(Rows, ThatAreNumbersBecomeFigures) {
  std::string names, values;
  for (const Figure& figure : FiguresOf([](RowSink& row) { Rows(Whole(), row); })) {
    names += figure.name + " ";
    values += figure.value ? std::to_string(*figure.value) + " " : "none ";
  }
  EXPECT_EQ(names, "small large step count mean other.count other.mean named.x fields.start ");
  EXPECT_EQ(values, "0.500000 inf none 2.000000 0.250000 none none 1.000000 8.000000 ");
}

TEST(Rows, HaveATextEach) {
  const auto texts = TextsOf(Whole());
  const std::map<std::string, std::string> by_name(texts.begin(), texts.end());
  EXPECT_EQ(texts.front().first, "name");
  EXPECT_EQ(by_name.at("name"), R"("a\"b")");
  EXPECT_EQ(by_name.at("step"), "null");
  EXPECT_EQ(by_name.at("count"), "2");
  EXPECT_EQ(by_name.at("other"), "null");
  EXPECT_EQ(by_name.at("ends"), "[-1,1]");
  EXPECT_EQ(by_name.at("named"), R"({"x":1})");
  EXPECT_EQ(by_name.at("parts").substr(0, 3), "[{\"");
}

TEST(Rows, TellTheKeysOfEachType) {
  std::vector<KeyTable> tables;
  AddKeys<Whole>("", tables);
  ASSERT_GE(tables.size(), 2u);
  EXPECT_EQ(tables[0].keys.size(), 13u);
  EXPECT_EQ(tables[1].path, "other");  // its type is in a list, too
  EXPECT_EQ(tables[1].keys, (decltype(tables[1].keys){{"count", "of all"}, {"mean", "of them"}}));
}

}  // namespace
}  // namespace dlsim::sim
