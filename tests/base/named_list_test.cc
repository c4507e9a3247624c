// SPDX-License-Identifier: Apache-2.0
#include "sim/base/named_list.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace dlsim::sim {
namespace {

struct Item {
  std::string name;
  int first = 0;
  int count = 0;
};

std::vector<std::string> NamesOf(const std::vector<Item>& items) {
  std::vector<std::string> names;
  for (const Item& item : items) names.push_back(item.name);
  return names;
}

TEST(NamedList, KeepsTheOrderOfFirstAppearance) {
  NamedList<Item> list;
  for (const char* const name : {"b", "a", "c", "a", "b", "b"}) ++list.Of(name, 0).count;
  EXPECT_EQ(NamesOf(list.items()), (std::vector<std::string>{"b", "a", "c"}));
  EXPECT_EQ(list.items()[0].count, 3);
  EXPECT_EQ(list.items()[1].count, 2);
  EXPECT_EQ(list.items()[2].count, 1);
}

TEST(NamedList, FindsWhateverIsGuessed) {
  NamedList<Item> list;
  list.Of("a", 7);
  list.Of("b", 0);
  for (const size_t guess : {size_t{0}, size_t{1}, size_t{2}, ~size_t{0}}) {
    EXPECT_EQ(list.Of("b", guess).name, "b");
  }
  EXPECT_EQ(list.items().size(), 2u);
}

TEST(NamedList, KeepsThePlacesOfMany) {
  NamedList<Item> list;
  constexpr size_t kMany = 1000;
  for (size_t round = 0; round < 2; ++round) {
    for (size_t i = 0; i < kMany; ++i) {
      EXPECT_EQ(list.PlaceOf("name" + std::to_string(i), kMany - i), i);
      ++list[i].count;
    }
  }
  EXPECT_EQ(list.items().size(), kMany);
  EXPECT_EQ(list.items()[7].count, 2);
}

TEST(NamedList, OnlyANewItemTakesTheRest) {
  NamedList<Item> list;
  EXPECT_EQ(list.Of("a", 0, 5).first, 5);
  EXPECT_EQ(list.Of("a", 0, 6).first, 5);
  EXPECT_EQ(list.Of("a", 9, 6).first, 5);
}

TEST(NamedList, IsEmptyOnceTaken) {
  NamedList<Item> list;
  list.Of("a", 0);
  list.Of("b", 1);
  EXPECT_EQ(NamesOf(list.Take()), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(list.items().empty());
  list.Of("b", 1);
  EXPECT_EQ(NamesOf(list.Take()), (std::vector<std::string>{"b"}));
}

}  // namespace
}  // namespace dlsim::sim
