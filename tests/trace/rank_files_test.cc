// SPDX-License-Identifier: Apache-2.0
// The files of several data-parallel ranks: which value they give together, and which are refused.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/format.h"
#include "dlsim/measure_step.h"
#include "tests/support/rank_files.h"
#include "tests/support/special_values.h"
#include "tests/support/test_traces.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

// Small files of several ranks in one directory.
class RankFiles : public TraceDirectoryTest {
 protected:
  void Write(int64_t step, int64_t rank, const std::vector<BuiltTensor>& tensors,
             const nlohmann::ordered_json& metadata = {}, int64_t micro = -1) {
    dir_.Write(StepFile(step, rank, micro), BuildSafetensors(tensors, metadata));
  }

  void WriteOne(int64_t step, int64_t rank, int64_t micro = -1,
                const nlohmann::ordered_json& metadata = {}) {
    Write(step, rank, {FloatTensor("w.grad", {1, 2})}, metadata, micro);
  }

  Recording Load(RankReduction reduction) {
    TraceOptions options;
    options.ranks = reduction;
    TraceStep step = OpenTrace({dir_.path()}, options).Load(0);
    EXPECT_EQ(step.recordings.size(), 1u);
    return std::move(step.recordings.front());
  }

  static Floats First(const Recording& recording) {
    return ValuesOf(recording, recording.tensors.front());
  }
};

TEST_F(RankFiles, AreAddedInAscendingOrder) {
  const Floats terms = {1.0f, 0x1p-24f, 0x1p-24f};
  const auto sum_of = [&](std::initializer_list<size_t> order) {
    int64_t rank = 0;
    for (const size_t term : order) Write(0, rank++, {FloatTensor("w.grad", {terms[term]})});
    return First(Load(RankReduction::kSum));
  };
  EXPECT_EQ(sum_of({0, 1, 2}), Floats{1.0f});
  EXPECT_EQ(sum_of({1, 2, 0}), Floats{1.0f + 0x1p-23f});
}

TEST_F(RankFiles, AreInNumericOrder) {
  Floats terms(11, 0.0f);
  terms[2] = 1.0f;
  terms[1] = terms[10] = 0x1p-24f;  // in the order of names, both would come before 1
  std::vector<Floats> ranks;
  for (size_t rank = 0; rank < terms.size(); ++rank) {
    ranks.push_back({terms[rank]});
    Write(0, static_cast<int64_t>(rank), {FloatTensor("w.grad", ranks.back())});
  }
  EXPECT_EQ(First(Load(RankReduction::kSum)), Floats{1.0f});
  EXPECT_EQ(First(Load(RankReduction::kMean)), Reduced(ranks, RankReduction::kMean));
}

TEST_F(RankFiles, TheMeanDividesTheSum) {
  Write(0, 0, {FloatTensor("w.grad", {1, 5, 0x1p-149f})});
  Write(0, 1, {FloatTensor("w.grad", {2, 0, 0x1p-149f})});
  Write(0, 2, {FloatTensor("w.grad", {4, 0, 0})});
  EXPECT_EQ(First(Load(RankReduction::kMean)), (Floats{7.0f / 3.0f, 5.0f / 3.0f, 0x1p-149f}));
  EXPECT_NE(5.0f / 3.0f, 5.0f * (1.0f / 3.0f));  // a reciprocal would give other bits
}

TEST_F(RankFiles, InfinityAndNanStay) {
  Write(0, 0, {FloatTensor("w.grad", {kInf, kInf, 1, 3e38f})});
  Write(0, 1, {FloatTensor("w.grad", {-1, -kInf, std::nanf(""), 3e38f})});
  const Floats values = First(Load(RankReduction::kMean));
  EXPECT_EQ(values[0], kInf);
  EXPECT_TRUE(std::isnan(values[1]));
  EXPECT_TRUE(std::isnan(values[2]));
  EXPECT_EQ(values[3], kInf);  // the sum overflows before it is divided
}

TEST_F(RankFiles, EachRankHasItsOwnTypeAndScale) {
  const BuiltTensor half = {"w.grad", "F16", {1}, LittleEndian(0x3C00, 2)};  // 1
  const BuiltTensor wide = {
      "w.grad", "F64", {1}, LittleEndian(std::bit_cast<uint64_t>(1.0 / 3.0), 8)};
  Write(0, 0, {half}, {{"grad_scale", "1024"}});
  Write(0, 1, {wide}, {{"grad_scale", "3"}});
  Write(0, 2, {FloatTensor("w.grad", {5})});
  const Floats ranks = {0x1p-10f, static_cast<float>(1.0 / 3.0) * (1.0f / 3.0f), 5.0f};
  const Recording recording = Load(RankReduction::kSum);
  EXPECT_EQ(First(recording), Floats{ranks[0] + ranks[1] + ranks[2]});
  EXPECT_EQ(recording.grad_scale, 1.0f);
  EXPECT_EQ(recording.tensors.front().info->dtype, DType::kF32);
}

TEST_F(RankFiles, TensorsMayComeInAnotherOrder) {
  Write(0, 0, {FloatTensor("a.grad", {1}), FloatTensor("b.grad", {10})});
  Write(0, 1, {FloatTensor("b.grad", {20}), FloatTensor("a.grad", {2})});
  const Recording recording = Load(RankReduction::kSum);
  ASSERT_EQ(recording.tensors.size(), 2u);
  EXPECT_EQ(recording.tensors[0].info->name, "a.grad");
  EXPECT_EQ(First(recording), Floats{3});
}

TEST_F(RankFiles, ActivationGradientsFollowEachOther) {
  Floats first(70'000, 1.0f), second(5'000, 2.0f);
  Write(0, 0, {FloatTensor("w.grad", {1}), {"x.act_grad", "F32", {35'000, 2}, FloatBytes(first)}},
        {{"grad_scale", "4"}});
  Write(0, 1,
        {FloatTensor("w.grad", {1}),
         {"x.act_grad", "F32", {2'500, 2}, FloatBytes(second)},
         FloatTensor("late.act_grad", {7})});
  const Recording recording = Load(RankReduction::kMean);
  ASSERT_EQ(recording.tensors.size(), 3u);
  Floats expected(70'000, 0.25f);  // without its loss scale, and not divided by the ranks
  expected.insert(expected.end(), second.begin(), second.end());
  EXPECT_EQ(ValuesOf(recording, recording.tensors[1]), expected);
  EXPECT_EQ(recording.tensors[1].info->shape, (std::vector<uint64_t>{37'500, 2}));
  EXPECT_EQ(recording.tensors[2].info->name, "late.act_grad");
  EXPECT_EQ(ValuesOf(recording, recording.tensors[2]), Floats{7});
  EXPECT_EQ(TensorBytes(recording.tensors[1], 12), TensorBytes(recording.tensors[1], 1 << 20));
}

TEST_F(RankFiles, ActivationGradientsOfOtherShapesHaveNoAxes) {
  Write(0, 0, {FloatTensor("w.grad", {1}), {"x.act_grad", "F32", {1, 2}, FloatBytes({1, 2})}});
  Write(0, 1, {FloatTensor("w.grad", {1}), {"x.act_grad", "F32", {}, FloatBytes({3})}});
  const Recording recording = Load(RankReduction::kSum);
  EXPECT_EQ(recording.tensors[1].info->shape, std::vector<uint64_t>{3});
  EXPECT_EQ(ValuesOf(recording, recording.tensors[1]), (Floats{1, 2, 3}));
}

TEST_F(RankFiles, MetadataAreThoseOfRank0AndCheckedInEach) {
  WriteOne(0, 0, -1, {{"rank", "0"}, {"ranks", "2"}, {"loss", "0.5"}});
  WriteOne(0, 1, -1, {{"rank", "1"}, {"ranks", "2"}, {"loss", "0.7"}});
  EXPECT_EQ(Load(RankReduction::kMean).metadata.at("loss"), "0.5");
  WriteOne(0, 1, -1, {{"rank", "2"}});
  ExpectRefused({"step-0.rank-1.safetensors", "rank in the metadata differs", "got 2"});
  WriteOne(0, 1, -1, {{"ranks", "3"}});
  ExpectRefused({"step-0.rank-1.safetensors", "missing rank", "expected 3", "got 2"});
}

TEST_F(RankFiles, ASingleRankIsReadAsItIs) {
  WriteOne(0, 3, -1, {{"rank", "3"}});
  const Recording recording = Load(RankReduction::kMean);
  EXPECT_EQ(recording.rank, 3);
  EXPECT_EQ(recording.ranks, nullptr);
  EXPECT_EQ(First(recording), (Floats{1, 2}));
  EXPECT_FALSE(Open().description().contains("ranks"));
  WriteOne(0, 3, -1, {{"ranks", "4"}});
  ExpectRefused({"missing rank", "expected 4"});
}

TEST_F(RankFiles, DirectoriesMayHaveOtherNumbersOfRanks) {
  TempDir later;
  for (const int64_t rank : {0, 1}) WriteOne(0, rank);
  for (const int64_t rank : {0, 1, 2}) {
    later.Write(StepFile(1, rank, -1), BuildSafetensors({FloatTensor("w.grad", {1})}));
  }
  const TraceReader reader = OpenTrace({dir_.path(), later.path()});
  EXPECT_EQ(reader.description().at("ranks"), "2, then 3");
  EXPECT_EQ(RecordedFiles(reader.Load(1)).size(), 3u);
}

TEST_F(RankFiles, MissingRanksAreRefused) {
  WriteOne(1, 0);
  WriteOne(1, 2);
  ExpectRefused({"step-1.rank-2.safetensors", "missing rank", "but 1 has none"});
  WriteOne(1, 1);
  WriteOne(2, 0);
  WriteOne(2, 2);
  ExpectRefused({"step-2.rank-0.safetensors", "missing rank", "step 2 of rank 1"});
  WriteOne(2, 1);
  EXPECT_EQ(Open().Load(1).recordings.size(), 1u);
  WriteStep("step-3.safetensors");
  ExpectRefused({"step-3.safetensors", "with and without ranks"});
}

TEST_F(RankFiles, MissingMicroStepsAreRefused) {
  WriteOne(1, 0, 0);
  WriteOne(1, 0, 1);
  WriteOne(1, 1, 0);
  ExpectRefused({"step-1.rank-0.micro-1", "missing rank", "step 1, micro-step 1, of rank 1"});
  WriteOne(1, 1, 1, {{"micro_steps", "2"}, {"micro_step", "1"}});
  EXPECT_EQ(Open().Load(0).recordings.size(), 2u);
  WriteOne(1, 1);
  ExpectRefused({"step-1.rank-1.safetensors", "with and without micro-steps"});
}

TEST_F(RankFiles, TheSameRankTwiceIsRefused) {
  WriteOne(1, 0);
  dir_.Write("step-1.rank-00.safetensors", StepBytes(""));
  ExpectRefused({"same step as", "step-1.rank-0"});
}

TEST_F(RankFiles, OtherParametersAreRefused) {
  WriteOne(1, 0);
  Write(1, 1, {FloatTensor("w.grad", {1, 2}), FloatTensor("v.grad", {1})});
  ExpectRefused({"rank-1.safetensors: tensor 'v.grad'", "is not in rank 0 of the same step"});
  Write(1, 1, {FloatTensor("w.grad", {1, 2, 3})});
  ExpectRefused({"rank-1.safetensors: tensor 'w.grad'", "shape differs from rank 0", "[2]", "[3]"});
  Write(1, 1, {FloatTensor("x.act_grad", {1})});
  ExpectRefused({"rank-1.safetensors: tensor 'w.grad'", "is missing, but rank 0 has it"});
}

TEST_F(RankFiles, AFileThatIsCutMeanwhileIsNamed) {
  for (const int64_t rank : {0, 1}) {
    Write(1, rank, {FloatTensor("v.grad", Floats(200'000)), FloatTensor("w.grad", {1})});
  }
  const TraceStep step = Open().Load(0);
  std::filesystem::resize_file(Path("step-1.rank-1.safetensors"), 300'000);
  const StepQuestion question = {.conversion = {kFp16}};
  ExpectInputError([&] { MeasureStep(step, question, {}); }, {"step-1.rank-1.safetensors"});
}

TEST_F(RankFiles, GivenOneByOneAreRefused) {
  for (const int64_t rank : {0, 1}) WriteOne(1, rank);
  ExpectInputError(
      [&] {
        OpenTrace({Path("step-1.rank-0.safetensors"), Path("step-1.rank-1.safetensors")});
      },
      {"rank-1.safetensors: ranks given as single files", "'" + dir_.path() + "'"});
}

}  // namespace
}  // namespace dlsim
