// SPDX-License-Identifier: Apache-2.0
// What the ranks of sharded training recorded, added up: which folders, which pieces, which tables.
#include "sim/replay/together.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/replay/step_sources.h"
#include "src/trace/tensor_rules.h"
#include "tests/support/trace_test_util.h"

namespace dlsim::sim {
namespace {

using Shape = std::vector<uint64_t>;
using Metadata = std::map<std::string, std::string>;

struct Held {
  std::string name;
  Shape shape;
  std::vector<float> values;  // 1, 2, 3 ... if empty
  DType dtype = DType::kF32;
};

StepTables TablesOf(std::vector<Held> tensors, Metadata metadata = {}) {
  StepTables step;
  step.step = 3;
  step.micro_steps = {-1};
  step.metadata = std::move(metadata);
  step.parts.resize(1);
  for (Held& tensor : tensors) {
    const Role role = RoleOfName(tensor.name);
    if (tensor.values.empty()) {
      tensor.values.resize(ElementCount(tensor.shape, 1).value());
      std::iota(tensor.values.begin(), tensor.values.end(), 1.0f);
    }
    step.tensors.push_back(TensorInfo{tensor.name, role, tensor.dtype, tensor.shape});
    step.gradients += IsGradient(role);
    step.parts[0].push_back(Tabulate(tensor.values));
  }
  return step;
}

StepSource SourceOf(std::vector<StepTables> ranks) {
  std::vector<StepSource> sources;
  std::vector<std::string> places;
  for (StepTables& rank : ranks) {
    places.push_back("shard-" + std::to_string(places.size()));
    sources.push_back(HeldSteps({std::move(rank)}));
  }
  return Together(std::move(sources), std::move(places));
}

StepTables Join(std::vector<StepTables> ranks) {
  return SourceOf(std::move(ranks)).load(0, {})->tables();
}

// The i-th rank holds piece i of `count`, in the i-th shape.
StepTables JoinPieces(const std::vector<Shape>& shapes, size_t count,
                      const std::string& role = "grad", const std::string& grid = "{}") {
  std::vector<StepTables> ranks;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const std::string name = "a.w.shard-" + std::to_string(i) + "-of-" + std::to_string(count);
    ranks.push_back(TablesOf({{name + "." + role, shapes[i], {}}}, {{"shard_grid", grid}}));
  }
  return Join(std::move(ranks));
}

TEST(Together, TablesOfPiecesAddUp) {
  const std::vector<float> values = {1, -2, 0, 4, 0x1p-140f, 6};
  const StepTables found =
      Join({TablesOf({{"w.shard-0-of-2.grad", {4}, {1, -2, 0, 4}},
                      {"x.act", {1}, {7}},
                      {"b.grad", {1}, {9}}}),
            TablesOf({{"w.shard-1-of-2.grad", {2}, {0x1p-140f, 6}}, {"c.grad", {1}, {8}}})});
  ASSERT_EQ(found.tensors.size(), 4u);
  EXPECT_EQ(found.gradients, 3u);
  EXPECT_EQ(found.step, 3);
  EXPECT_EQ(found.tensors[0]->name, "w.grad");
  EXPECT_EQ(found.tensors[0]->shape, Shape{6});
  EXPECT_EQ(found.parts[0][0], Tabulate(values));
  EXPECT_EQ(found.tensors[1]->name, "b.grad");
  EXPECT_EQ(found.tensors[2]->name, "c.grad");
  EXPECT_EQ(found.parts[0][2], Tabulate(std::vector<float>{8}));
  EXPECT_EQ(found.tensors[3]->name, "x.act");
}

TEST(Together, WholesHaveTheShapeThatTheirCutsTell) {
  const auto shape = [](const StepTables& step) { return step.tensors.at(0)->shape; };
  EXPECT_EQ(shape(JoinPieces({{2, 3}, {2, 3}, {1, 3}, {0, 3}}, 4)), (Shape{5, 3}));
  EXPECT_EQ(shape(JoinPieces({{2, 3}, {0}}, 2)), (Shape{2, 3}));
  const std::string grid = R"({"a.w.grad": [[0, 2], [1, 2]], "a.w.act_grad": [[0, 2], [1, 2]]})";
  EXPECT_EQ(shape(JoinPieces({{2, 3}, {2, 1}, {1, 3}, {1, 1}}, 4, "grad", grid)), (Shape{3, 4}));
  // Pieces that have lost their shape, or leave a hole, have only a number of elements.
  EXPECT_EQ(shape(JoinPieces({{6}, {2, 3}}, 2, "grad", R"({"a.w.grad": [[1, 2]]})")), Shape{12});
  EXPECT_EQ(shape(JoinPieces({{1, 2}, {1, 2}, {1, 2}}, 4, "act_grad", grid)), Shape{6});
}

TEST(Together, ParametersAndTheirGradientsNeedAllPiecesAndActivationsDoNot) {
  for (const std::string role : {"grad", "value"}) {
    ExpectInputError(
        [&] {
          JoinPieces({{1}, {1}}, 3, role);
        },
        {"shard-0: tensor 'a.w." + role + "': a piece is missing in all shards, expected 3 pieces",
         "got none of number 2"});
  }
  for (const std::string role : {"act", "act_grad"}) {
    EXPECT_EQ(JoinPieces({{1}, {1}}, 3, role).tensors.at(0)->shape, Shape{2});
  }
}

TEST(Together, WhatDoesNotFitIsRefused) {
  const Held piece = {"w.shard-0-of-2.grad", {1}, {}};
  ExpectInputError(
      [&] {
        Join({TablesOf({piece}), TablesOf({piece})});
      },
      {"shard-1: tensor 'w.shard-0-of-2.grad': is in a shard before, expected once"});
  const Held other = {"w.shard-1-of-2.grad", {1}, {}, DType::kF16};
  ExpectInputError(
      [&] {
        Join({TablesOf({piece}), TablesOf({other})});
      },
      {"shard-1: tensor 'w.shard-1-of-2.grad': does not fit the piece in shard-0, "
       "expected the same number of pieces, type and role"});
  StepTables later = TablesOf({{"b.grad", {1}, {}}});
  later.step = 4;
  ExpectInputError(
      [&] {
        Join({TablesOf({{"a.grad", {1}, {}}}), later});
      },
      {"shard-1: other steps than in the first shard, expected 3, got 4"});
  for (const char* bad : {R"({"w": 1})", R"({"w": [[1]]})", R"({"w": [[1, 0]]})",
                          R"({"w": [[0, 1000000], [0, 1000000]]})", R"([1])", R"({)"}) {
    ExpectInputError([&] { JoinPieces({{1}}, 1, "grad", bad); }, {"shard-0: "});
  }
}

TEST(Together, OtherNamesAreWholeTensors) {
  for (const char* name : {"w.grad", "shard-0-of-2", "w.shard-2-of-2.grad", "w.shard-x-of-2.grad",
                           "w.shard-0-of-2", ".shard-.grad"}) {
    EXPECT_EQ(Join({TablesOf({{name, {1}, {}}})}).tensors.at(0)->name, name);
  }
}

TEST(Together, MetadataNameWhatThoseOfAnyRankName) {
  const StepTables found = Join(
      {TablesOf({{"a.grad", {1}, {}}}, {{"loss", "1"},
                                        {"shard_grid", "{}"},
                                        {"feature_axes", "1 filter.shard-0-of-2.act_grad"},
                                        {"autocast_float32", "a/exp.act\nnorm.shard-0-of-2.act"},
                                        {"noise", "q.weight.shard-0-of-2.grad"}}),
       TablesOf({{"b.grad", {1}, {}}},
                {{"loss", "2"}, {"autocast_float32", "norm.shard-1-of-2.act\nb.act"}}),
       TablesOf({{"c.grad", {1}, {}}}, {{"lr", "3"}})});
  EXPECT_EQ(found.metadata, (Metadata{{"loss", "1"},
                                      {"lr", "3"},
                                      {"feature_axes", "1 filter.act_grad"},
                                      {"autocast_float32", "a/exp.act\nb.act\nnorm.act"},
                                      {"noise", "q.weight.grad"}}));
}

TEST(Together, FindsTheFoldersOfAllRanks) {
  const TempDir dir;
  const auto path = [&](int rank, int ranks) {
    return dir.path() + "/shard-0000" + std::to_string(rank) + "-of-0000" + std::to_string(ranks);
  };
  EXPECT_TRUE(FindShards({dir.path()}).empty());
  std::filesystem::create_directory(path(1, 2));
  ExpectInputError([&] { FindShards({dir.path()}); },
                   {"missing shard, expected 2 shards from 0 on, got none of number 0"});
  std::filesystem::create_directory(path(0, 2));
  const std::vector<std::string> both = {path(0, 2), path(1, 2)};
  EXPECT_EQ(FindShards({dir.path()}), both);
  EXPECT_EQ(FindShards({path(1, 2), path(0, 2)}), both);
  EXPECT_TRUE(FindShards({path(1, 2)}).empty());  // a trace of its own
  EXPECT_TRUE(FindShards({path(1, 2), dir.path()}).empty());
  ExpectInputError([&] { FindShards({path(0, 2), path(1, 3)}); }, {"is a shard of another run"});
  ExpectInputError([&] { FindShards({path(0, 2), path(0, 2)}); }, {"is given twice"});
}

}  // namespace
}  // namespace dlsim::sim
