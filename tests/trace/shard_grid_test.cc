// SPDX-License-Identifier: Apache-2.0
#include "src/trace/shard_grid.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "src/trace/tensor_rules.h"
#include "tests/support/trace_test_util.h"

namespace dlsim {
namespace {

using Shapes = std::vector<std::vector<uint64_t>>;

// The i-th shard holds piece i of `count`, in the i-th shape.
std::vector<WholeTensor> Join(const Shapes& shapes, size_t count, const ShardGrids& grids = {},
                              const std::string& role = "grad") {
  std::vector<std::vector<PieceHeader>> shards;
  std::vector<std::string> places;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const std::string name = "a.w.shard-" + std::to_string(i) + "-of-" + std::to_string(count);
    const std::string full = name + "." + role;
    shards.push_back({{full, RoleOfName(full), DType::kF32, shapes[i]}});
    places.push_back("shard-" + std::to_string(i));
  }
  return WholeTensorsOf(shards, places, grids);
}

Shapes Begins(const WholeTensor& tensor) {
  Shapes begins;
  for (const TensorPiece& piece : tensor.pieces) begins.push_back(piece.begin);
  return begins;
}

TEST(ShardGrid, PiecesFollowAlongTheFirstDimension) {
  const std::vector<WholeTensor> tensors = Join({{2, 3}, {2, 3}, {1, 3}, {0, 3}}, 4);
  ASSERT_EQ(tensors.size(), 1u);
  EXPECT_EQ(tensors[0].header.name, "a.w.grad");
  EXPECT_EQ(tensors[0].header.shape, (std::vector<uint64_t>{5, 3}));
  EXPECT_EQ(Begins(tensors[0]), (Shapes{{0, 0}, {2, 0}, {4, 0}, {5, 0}}));
}

TEST(ShardGrid, CutsOfTwoDimensionsCountTheLastFastest) {
  const WholeTensor tensor =
      Join({{2, 3}, {2, 1}, {1, 3}, {1, 1}}, 4, {{"a.w.grad", {{0, 2}, {1, 2}}}}).at(0);
  EXPECT_EQ(tensor.header.shape, (std::vector<uint64_t>{3, 4}));
  EXPECT_EQ(Begins(tensor), (Shapes{{0, 0}, {0, 3}, {2, 0}, {2, 3}}));
}

TEST(ShardGrid, PiecesThatHaveLostTheirShapeFollowEachOther) {
  const WholeTensor tensor = Join({{6}, {2, 3}}, 2, {{"a.w.grad", {{1, 2}}}}).at(0);
  EXPECT_EQ(tensor.header.shape, (std::vector<uint64_t>{12}));
  EXPECT_EQ(Begins(tensor), (Shapes{{0}, {6}}));
}

TEST(ShardGrid, ParametersAndTheirGradientsNeedAllPiecesAndActivationsDoNot) {
  for (const std::string role : {"grad", "value"}) {
    ExpectInputError(
        [&] {
          Join({{1}, {1}}, 3, {}, role);
        },
        {"shard-0: tensor 'a.w." + role + "': a piece is missing in all shards, expected 3 pieces",
         "got none of number 2"});
  }
  for (const std::string role : {"act", "act_grad"}) {
    EXPECT_EQ(Join({{1}, {1}}, 3, {}, role).at(0).header.shape, std::vector<uint64_t>{2});
  }
  // With a hole in the grid the rest has no shape.
  const ShardGrids grids = {{"a.w.act_grad", {{0, 2}, {1, 2}}}};
  EXPECT_EQ(Join({{1, 2}, {1, 2}, {1, 2}}, 4, grids, "act_grad").at(0).header.shape,
            std::vector<uint64_t>{6});
}

TEST(ShardGrid, PiecesThatDoNotFitAreRefused) {
  const PieceHeader piece{"w.shard-0-of-2.grad", Role::kGrad, DType::kF32, {1}};
  const std::vector<std::string> places = {"a", "b"};
  std::vector<std::vector<PieceHeader>> shards = {{piece}, {piece}};
  ExpectInputError([&] { WholeTensorsOf(shards, places, {}); },
                   {"b: tensor 'w.shard-0-of-2.grad': is in a shard before, expected once"});
  shards[1][0].name = "w.shard-1-of-2.grad";
  shards[1][0].dtype = DType::kF16;
  ExpectInputError([&] { WholeTensorsOf(shards, places, {}); },
                   {"b: tensor 'w.shard-1-of-2.grad': does not fit the piece in a, expected the "
                    "same number of pieces, type and role"});
}

TEST(ShardGrid, OtherNamesAreWholeTensors) {
  for (const char* name :
       {"w.grad", "shard-0-of-2", "w.shard-2-of-2.grad", "w.shard-x-of-2.grad"}) {
    const std::vector<std::vector<PieceHeader>> shards = {{{name, Role::kGrad, DType::kF32, {}}}};
    const std::vector<std::string> places = {"a"};
    EXPECT_EQ(WholeTensorsOf(shards, places, {}).at(0).header.name, name);
  }
}

TEST(ShardGrid, MetadataOfShardsNameWhatAnyOfThemNames) {
  std::map<std::string, std::string> whole;
  JoinMetadata({{"loss", "1"},
                {"shard_grid", "{}"},
                {"feature_axes", "1 filter.shard-0-of-2.act_grad"},
                {"autocast_float32", "a/exp.act\nnorm.shard-0-of-2.act"},
                {"noise", "q.weight.shard-0-of-2.grad"}},
               whole);
  JoinMetadata({{"loss", "2"}, {"autocast_float32", "norm.shard-1-of-2.act\nb.act"}}, whole);
  JoinMetadata({{"lr", "3"}}, whole);
  EXPECT_EQ(whole,
            (std::map<std::string, std::string>{{"loss", "1"},
                                                {"lr", "3"},
                                                {"feature_axes", "1 filter.act_grad"},
                                                {"autocast_float32", "a/exp.act\nb.act\nnorm.act"},
                                                {"noise", "q.weight.grad"}}));
}

TEST(ShardGrid, MetadataIsReadStrictly) {
  ShardGrids grids;
  AddShardGrids("a", {{"shard_grid", R"({"w.grad": [[1, 4], [0, 2]]})"}}, grids);
  ASSERT_EQ(grids.at("w.grad").size(), 2u);
  EXPECT_EQ(grids.at("w.grad")[0].dimension, 1u);
  EXPECT_EQ(grids.at("w.grad")[1].parts, 2u);
  for (const char* bad : {R"({"w": 1})", R"({"w": [[1]]})", R"({"w": [[1, 0]]})",
                          R"({"w": [[0, 1000000], [0, 1000000]]})", R"([1])", R"({)"}) {
    ExpectInputError([&] { AddShardGrids("a", {{"shard_grid", bad}}, grids); }, {"a: "});
  }
}

}  // namespace
}  // namespace dlsim
