// SPDX-License-Identifier: Apache-2.0
// Probes: what is written is read, also where a writer was killed and another goes on.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>
#include <set>

#include "dlsim/convert.h"
#include "tests/probe/probe_test_util.h"
#include "tests/support/profile_test_util.h"

namespace dlsim {
namespace {

using Existing = ProbeWriter::Existing;

class ProbeFileTest : public testing::Test {
 protected:
  ProbeFileTest() { WriteSmallProbe(path_); }

  TempDir dir_;
  std::string path_ = dir_.path() + "/a.dlprobe";
  ProbeHead head_ = SmallHead();
};

TEST_F(ProbeFileTest, WhatIsWrittenIsRead) {
  const WholeProbe whole = ReadWholeProbe(path_);
  EXPECT_EQ(whole.head, head_);
  EXPECT_EQ(whole.cut_bytes, 0u);
  ASSERT_EQ(whole.steps.size(), 4u);
  for (int64_t step = 0; step < 4; ++step) EXPECT_EQ(whole.steps[step], SmallStep(head_, step));
  EXPECT_EQ(whole.values[0], SmallValues(head_, 1));
  EXPECT_EQ(whole.values[1], std::nullopt);
  EXPECT_EQ(whole.values[2], SmallValues(head_, 2));
  EXPECT_EQ(whole.values[4], SmallValues(head_, 3));
  EXPECT_TRUE(ProbeReader::IsProbe(path_));
  EXPECT_FALSE(ProbeReader::IsProbe(dir_.path()));
  EXPECT_FALSE(ProbeReader::IsProbe(dir_.Write("b", "DLPROF")));
  EXPECT_FALSE(ProbeReader::IsProbe(dir_.Write("c", "DL")));
}

TEST_F(ProbeFileTest, EveryFloatComesBackAsItWas) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  ProbeStep step = SmallStep(head_, 4);
  step.gradients = {0.0f, -0.0f, 1e-45f, kInf, -kInf, 3.0e38f, 1.0f};
  step.groups[0].values["lr"] = std::numeric_limits<double>::denorm_min();
  {
    ProbeWriter writer(path_, head_, Existing::kContinue);
    writer.AddStep(step);
    step.step = 5;
    step.gradients[6] = std::bit_cast<float>(0x7FC12345u);
    writer.AddStep(step);
  }
  const WholeProbe whole = ReadWholeProbe(path_);
  EXPECT_EQ(std::signbit(whole.steps[4].gradients[1]), true);
  EXPECT_EQ(whole.steps[4].groups, step.groups);
  EXPECT_EQ(std::bit_cast<uint32_t>(whole.steps[5].gradients[6]), 0x7FC12345u);
}

TEST_F(ProbeFileTest, AnUpdateTakesFourBytesForEachElement) {
  const uint64_t before = std::filesystem::file_size(path_);
  ProbeWriter writer(path_, head_, Existing::kContinue);
  ProbeStep step = SmallStep(head_, 4);
  writer.AddStep(step);
  const uint64_t first = writer.bytes();
  step.step = 5;
  writer.AddStep(step);  // with the same groups
  EXPECT_EQ(writer.bytes() - first, 20u + 8 + 8 + 1 + 4 * head_.FollowedCount());
  EXPECT_GT(first - before, writer.bytes() - first);
  EXPECT_EQ(writer.bytes(), std::filesystem::file_size(path_));
}

TEST_F(ProbeFileTest, ASecondUpdateOfAStepIsTakenButNoneOfAnEarlier) {
  ProbeWriter writer(path_, head_, Existing::kContinue);
  writer.AddStep(SmallStep(head_, 3));
  EXPECT_EQ(writer.step_count(), 5u);
  ExpectInputError([&] { writer.AddStep(SmallStep(head_, 2)); },
                   {"a.dlprobe: steps must ascend, expected at least 3, got 2"});
  EXPECT_EQ(writer.last_step(), 3);
}

TEST_F(ProbeFileTest, AStepThatIsThereAlreadyIsRewound) {
  for (int64_t from = 4; from >= 0; --from) {
    SCOPED_TRACE(from);
    const std::string bytes = ReadBytes(path_);
    ProbeWriter writer(path_, head_, Existing::kContinue);
    writer.Forget(from);
    ASSERT_EQ(writer.step_count(), static_cast<size_t>(from));
    writer.AddValues(SmallValues(head_, 9));
    writer.AddStep(SmallStep(head_, from));
    const WholeProbe whole = ReadWholeProbe(path_);
    EXPECT_EQ(whole.cut_bytes, 0u);
    EXPECT_EQ(whole.values[from], SmallValues(head_, 9));
    for (int64_t step = 0; step <= from; ++step) {
      EXPECT_EQ(whole.steps[step], SmallStep(head_, step));
    }
    std::ofstream(path_, std::ios::binary) << bytes;
  }
}

TEST_F(ProbeFileTest, AnotherWriterGoesOnBehindACutAtEveryByte) {
  const std::string bytes = ReadBytes(path_);
  const WholeProbe whole = ReadWholeProbe(path_);
  for (size_t size = 0; size <= bytes.size(); ++size) {
    SCOPED_TRACE(size);
    std::ofstream(path_, std::ios::binary) << bytes.substr(0, size);
    {
      ProbeWriter writer(path_, head_, Existing::kContinue);
      const int64_t next = static_cast<int64_t>(writer.step_count());
      if (next == 0) writer.AddValues(SmallValues(head_, 1));
      for (int64_t step = next; step < 4; ++step) writer.AddStep(SmallStep(head_, step));
    }
    const WholeProbe continued = ReadWholeProbe(path_);
    ASSERT_EQ(continued.steps, whole.steps);
    ASSERT_EQ(continued.values[0], whole.values[0]);
    ASSERT_EQ(continued.cut_bytes, 0u);
  }
}

TEST_F(ProbeFileTest, WhatWasTakenBeforeAKillIsThere) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ProbeWriter writer(path_, head_, Existing::kContinue);
    for (int64_t step = 4; step < 40; ++step) writer.AddStep(SmallStep(head_, step));
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(ReadWholeProbe(path_).steps.size(), 40u);
  ProbeWriter writer(path_, head_, Existing::kContinue);  // nobody holds the lock
  EXPECT_EQ(writer.last_step(), 39);
}

// A machine that went down may have written the size but not the bytes.
TEST_F(ProbeFileTest, AnotherWriterDropsADamagedLastUpdate) {
  std::string bytes = ReadBytes(path_);
  const uint64_t values = 20 + 4 * head_.FollowedCount() + 1 + 3 + 8 + 11 + 16 + 8;
  bytes.resize(bytes.size() - std::min<size_t>(values, bytes.size()));
  std::ofstream(path_, std::ios::binary) << bytes;
  const size_t steps = ProbeReader::Open(path_).step_count();
  bytes.resize(bytes.size() - ProbeReader::Open(path_).cut_bytes());
  bytes.back() = static_cast<char>(~bytes.back());
  std::ofstream(path_, std::ios::binary) << bytes;
  const ProbeWriter writer(path_, head_, Existing::kContinue);
  EXPECT_EQ(writer.step_count(), steps - 1);
}

TEST_F(ProbeFileTest, OneWriterAtATime) {
  const ProbeWriter writer(path_, head_, Existing::kContinue);
  ExpectInputError([&] { ProbeWriter(path_, head_, Existing::kContinue); },
                   {"being written by another process"});
}

TEST_F(ProbeFileTest, NeverOverwritesAFileOfSomebodyElse) {
  for (const std::string text : {"x", "DLPROF\2", "notes of somebody\n"}) {
    const std::string path = dir_.Write("other", text);
    for (const Existing existing : {Existing::kReplace, Existing::kContinue}) {
      ExpectInputError([&] { ProbeWriter(path, head_, existing); },
                       {"other: is not a probe and is not overwritten"});
    }
    EXPECT_EQ(ReadBytes(path), text);
  }
  ExpectInputError([&] { ProbeWriter(dir_.path(), head_, Existing::kReplace); }, {"directory"});
}

TEST_F(ProbeFileTest, AnotherModelDoesNotGoOn) {
  const std::string bytes = ReadBytes(path_);
  ProbeHead other = head_;
  other.tensors[0].name = "w.other";
  ExpectInputError([&] { ProbeWriter(path_, other, Existing::kContinue); },
                   {"follows other elements of other parameters"});
  other = head_;
  other.description = {{"recorder", "another version"}};
  EXPECT_NO_THROW(ProbeWriter(path_, other, Existing::kContinue));
  EXPECT_EQ(ReadBytes(path_), bytes);
}

TEST(ReadSampleTest, ReadsWhatIsAtTheIndices) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const uint64_t elements : {1, 7, 16, 40, 64, 500, 2000}) {
      SCOPED_TRACE(elements);
      const ProbeTensor tensor = SampleOf("w", {31, 33}, dtype, elements);
      std::vector<float> all = Numbers(31 * 33, -8), sample(tensor.count);  // exact in 16 bits
      for (float& value : all) value = std::fmod(value, 64.0f);
      std::vector<uint16_t> codes(all.size());
      if (dtype != DType::kF32) {
        EncodeArray({{dtype == DType::kF16 ? kFp16 : kBf16}}, all, std::span(codes));
      }
      const auto bytes = std::as_bytes(std::span(codes));
      ReadSample(tensor, dtype == DType::kF32 ? std::as_bytes(std::span(all)).data() : bytes.data(),
                 sample);
      for (uint64_t i = 0; i < tensor.count; ++i) ASSERT_EQ(sample[i], all[tensor.IndexOf(i)]);
    }
  }
}

TEST(SampleOfTest, MeetsAllColumnsAndNearlyAllRows) {
  for (const auto& [rows, columns] : {std::pair{512u, 512u}, {1000u, 768u}, {97u, 4096u}}) {
    SCOPED_TRACE(columns);
    const ProbeTensor tensor = SampleOf("w", {rows, columns}, DType::kF32, 16384);
    EXPECT_EQ(tensor.count, 16384u);
    std::set<uint64_t> met_rows, met_columns, elements;
    for (uint64_t i = 0; i < tensor.count; ++i) {
      const uint64_t at = tensor.IndexOf(i);
      elements.insert(at);
      met_rows.insert(at / columns);
      met_columns.insert(at % columns);
    }
    EXPECT_EQ(elements.size(), tensor.count);
    EXPECT_LT(*elements.rbegin(), uint64_t{rows} * columns);
    EXPECT_EQ(met_columns.size(), columns);
    EXPECT_GE(met_rows.size(), std::min<size_t>(rows * 99 / 100, 1000));
  }
}

TEST(SampleOfTest, TakesSmallParametersWholeAndNeverMoreThanAsked) {
  for (uint64_t size = 1; size < 300; ++size) {
    for (const uint64_t elements : {1u, 7u, 16u, 33u, 100u}) {
      SCOPED_TRACE(std::to_string(elements) + " of " + std::to_string(size));
      const ProbeTensor tensor = SampleOf("w", {size}, DType::kF32, elements);
      ASSERT_LE(tensor.count, std::min(size, elements));
      ASSERT_GT(tensor.count + 16, std::min(size, elements));
      if (size <= elements) {
        ASSERT_EQ(tensor.count, size);
      }
      for (uint64_t i = 1; i < tensor.count; ++i) {
        ASSERT_GT(tensor.IndexOf(i), tensor.IndexOf(i - 1));
      }
      ASSERT_LT(tensor.IndexOf(tensor.count - 1), size);
    }
  }
}

TEST(SampleOfTest, RefusesWhatCannotBeFollowed) {
  EXPECT_THROW(SampleOf("w", {3}, DType::kF64, 4), Error);
  EXPECT_THROW(SampleOf("w", {3, 0}, DType::kF32, 4), Error);
  EXPECT_THROW(SampleOf("w", {3}, DType::kF32, 0), Error);
  EXPECT_EQ(SampleOf("scalar", {}, DType::kF32, 4).count, 1u);
}

}  // namespace
}  // namespace dlsim
