// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/base/table.h"

namespace dlsim::sim {
namespace {

TEST(Wrap, BreaksAtBlanksAndIndents) {
  EXPECT_EQ(Wrap("one two three", 8), "one two\n  three\n");
  EXPECT_EQ(Wrap("  note: one two", 12), "  note: one\n    two\n");
  EXPECT_EQ(Wrap("unbreakable", 4), "unbreakable\n");
  EXPECT_EQ(Wrap("  a unbreakable b", 6), "  a\n    unbreakable\n    b\n");
  EXPECT_EQ(Wrap("", 4), "\n");
}

TEST(FitLines, LeavesTablesAndCodeAlone) {
  const std::string table = "  format  scale  steps\n  # scaler = Scaler(init = 1)\n";
  EXPECT_EQ(FitLines(table, 10), table);
  EXPECT_EQ(FitLines("one two three\n\nfour\n", 8), "one two\n  three\n\nfour\n");
  EXPECT_EQ(FitLines("one two three", 8), "one two\n  three");
}

TEST(Table, GoesWithoutWhatDoesNotFit) {
  const std::vector<TableRow> rows = {{"run", "skipped", "scale", "lost"}, {"a", "1/2", "4", "0"}};
  const std::vector<std::string_view> dispensable = {"lost", "absent", "scale"};
  const std::string whole = FormatTable(rows, dispensable, 80);
  EXPECT_EQ(whole, "  run  skipped  scale  lost\n  a        1/2      4     0\n");
  EXPECT_EQ(FormatTable(rows, dispensable, 27), whole);
  EXPECT_EQ(FormatTable(rows, dispensable, 26),
            "  run  skipped  scale\n  a        1/2      4\n  in a wider terminal: lost\n");
  EXPECT_EQ(FormatTable(rows, dispensable, 5),
            "  run  skipped\n  a        1/2\n  in a wider terminal: lost, scale\n");
}

}  // namespace
}  // namespace dlsim::sim
