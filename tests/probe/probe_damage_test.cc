// SPDX-License-Identifier: Apache-2.0
// Probes that are cut, changed or forged.
#include <gtest/gtest.h>

#include "src/probe/probe_code.h"
#include "src/probe/probe_index.h"
#include "src/probe/stored_probe.h"
#include "src/profile/chunk.h"
#include "tests/probe/probe_test_util.h"
#include "tests/support/profile_test_util.h"

namespace dlsim {
namespace {

std::string EncodeGradients(const ProbeStep& step) {
  std::string bytes, memory;
  PutGradientsHead(step, bytes);
  return bytes.append(FloatBytes(step.gradients, memory));
}

class ProbeDamageTest : public testing::Test {
 protected:
  ProbeDamageTest() {
    WriteSmallProbe(path_);
    bytes_ = ReadBytes(path_);
    whole_ = ReadWholeProbe(path_);
  }

  static WholeProbe Read(const std::string& bytes) {
    return ReadWhole(StoredProbe(MemorySource("a.dlprobe", Bytes(bytes))));
  }

  static void ExpectRefused(const std::string& bytes, const std::string& what) {
    SCOPED_TRACE(what);
    ExpectInputError([&] { Read(bytes); }, {"a.dlprobe"});
  }

  TempDir dir_;
  std::string path_ = dir_.path() + "/a.dlprobe";
  std::string bytes_;
  WholeProbe whole_;
};

// What a kill leaves: the steps before, and how many bytes are left out.
TEST_F(ProbeDamageTest, ACutFileIsReadUpToItsLastWholeUpdate) {
  const size_t opening = ProbeOpening("a", whole_.head).size();
  size_t steps = 0;
  for (size_t size = 0; size < bytes_.size(); ++size) {
    SCOPED_TRACE(size);
    if (size < opening) {
      ExpectRefused(bytes_.substr(0, size), "without an opening");
      continue;
    }
    const WholeProbe cut = Read(bytes_.substr(0, size));
    ASSERT_GE(cut.steps.size(), steps);
    steps = cut.steps.size();
    ASSERT_TRUE(std::equal(cut.steps.begin(), cut.steps.end(), whole_.steps.begin()));
    ASSERT_LT(cut.cut_bytes, bytes_.size() - opening);
    const WholeProbe again = Read(bytes_.substr(0, size - cut.cut_bytes));
    ASSERT_EQ(again.cut_bytes, 0u);
    ASSERT_EQ(again.steps, cut.steps);
  }
  EXPECT_EQ(steps, whole_.steps.size());
}

// But for the size of the values at the end, which look cut off then; no step is lost.
TEST_F(ProbeDamageTest, EveryFlippedBitIsRefused) {
  const uint64_t last = IndexProbe(MemorySource("a", Bytes(bytes_))).values.at(4);
  size_t cut = 0;
  for (size_t bit = 0; bit < 8 * bytes_.size(); ++bit) {
    SCOPED_TRACE(bit);
    std::string bytes = bytes_;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    if (bit / 8 >= last + 4 && bit / 8 < last + kChunkHeaderBytes) {
      try {
        const WholeProbe read = Read(bytes);
        ASSERT_EQ(read.steps, whole_.steps);
        ASSERT_EQ(read.cut_bytes, bytes_.size() - last);
        ++cut;
        continue;
      } catch (const Error&) {
        continue;  // a smaller size
      }
    }
    ExpectRefused(bytes, "flipped");
  }
  EXPECT_GT(cut, 50u);
}

TEST_F(ProbeDamageTest, EveryLostByteIsRefused) {
  const uint64_t last = IndexProbe(MemorySource("a", Bytes(bytes_))).values.at(4);
  for (size_t at = 0; at < last; ++at) {
    std::string bytes = bytes_;
    ExpectRefused(bytes.erase(at, 1), "without byte " + std::to_string(at));
  }
}

TEST_F(ProbeDamageTest, AnotherVersionIsNamed) {
  bytes_[6] = '\2';
  ExpectInputError([&] { Read(bytes_); }, {"another version, expected 1, got 2"});
}

// Builds files with right checksums, whatever they hold.
class ProbeForgeryTest : public ProbeDamageTest {
 protected:
  static std::string FileOf(const std::string& head, const std::string& tensors) {
    std::string bytes("DLPROB\1\0", 8);
    Put(ChunkType::kHead, head, bytes);
    Put(ChunkType::kElements, tensors, bytes);
    return bytes;
  }

  static void Put(ChunkType type, const std::string& payload, std::string& bytes) {
    PutChunk(type, payload, bytes.size(), bytes);
  }

  std::string Opening() const { return ProbeOpening("a", whole_.head); }
  std::string head_ = EncodeProbeHead("a", SmallHead());
  std::string values_ = EncodeProbeValues(SmallValues(SmallHead(), 1));
  std::string groups_ = EncodeProbeGroups(SmallStep(SmallHead(), 0));
};

TEST_F(ProbeForgeryTest, WrongHeadsAreRefused) {
  const std::string tensors = EncodeProbeTensors(whole_.head.tensors);
  EXPECT_NO_THROW(Read(FileOf(head_, tensors)));
  const auto with = [&](const std::string& from, const std::string& to) {
    const size_t at = head_.find(from);
    EXPECT_NE(at, head_.npos) << from;
    return FileOf(std::string(head_).replace(at, from.size(), to), tensors);
  };
  ExpectRefused(FileOf("", tensors), "empty");
  ExpectRefused(FileOf("[1]", tensors), "no object");
  ExpectRefused(with("probe/1", "probe/2"), "another schema");
  ExpectRefused(with("\"elements\":4", "\"elements\":-4"), "negative");
  ExpectRefused(with("\"elements\"", "\"new\":1,\"elements\""), "of the future");
  ExpectRefused(with("\"a test\"", "7"), "type");
}

TEST_F(ProbeForgeryTest, WrongElementsAreRefused) {
  const auto refuse = [&](const std::string& what, const auto& change) {
    std::vector<ProbeTensor> tensors = whole_.head.tensors;
    change(tensors[0]);
    ExpectRefused(FileOf(head_, EncodeProbeTensors(tensors)), what);
  };
  constexpr uint64_t kMany = ~uint64_t{0};
  refuse("no elements", [](ProbeTensor& t) { t.count = 0; });
  refuse("no run", [](ProbeTensor& t) { t.run = 0; });
  refuse("too many", [](ProbeTensor& t) { t.count = 16; });
  refuse("beyond the end", [](ProbeTensor& t) { t = {"w", {15}, DType::kF32, 5, 1, 4}; });
  refuse("far beyond", [](ProbeTensor& t) { t = {"w", {kMany}, DType::kF32, kMany / 2, 1, 4}; });
  refuse("overlapping", [](ProbeTensor& t) { t = {"w", {15}, DType::kF32, 1, 2, 4}; });
  refuse("huge shape", [](ProbeTensor& t) { t.shape = {kMany, 3}; });
  refuse("huge count", [](ProbeTensor& t) { t = {"w", {kMany}, DType::kF32, 1, 1, kMany}; });
  refuse("float64", [](ProbeTensor& t) { t.dtype = DType::kF64; });
  std::string bytes = EncodeProbeTensors(whole_.head.tensors);
  ExpectRefused(FileOf(head_, bytes + '\0'), "a byte more");
  ExpectRefused(FileOf(head_, bytes.substr(1)), "a byte less");
}

TEST_F(ProbeForgeryTest, ChunksOutOfOrderAreRefused) {
  std::string gradients = EncodeGradients(SmallStep(whole_.head, 0));
  std::string no_values = Opening(), no_groups = Opening(), good = Opening();
  Put(ChunkType::kGroups, groups_, no_values);
  Put(ChunkType::kGradients, gradients, no_values);
  ExpectRefused(no_values, "no values");
  Put(ChunkType::kValues, values_, no_groups);
  Put(ChunkType::kGradients, gradients, no_groups);
  ExpectRefused(no_groups, "no groups");
  Put(ChunkType::kValues, values_, good);
  Put(ChunkType::kGroups, groups_, good);
  Put(ChunkType::kGradients, gradients, good);
  EXPECT_EQ(Read(good).steps.size(), 1u);
  std::string back = good, other = good, few = good;
  gradients = EncodeGradients(SmallStep(whole_.head, -1));
  Put(ChunkType::kGradients, gradients, back);
  ExpectRefused(back, "an earlier step");
  Put(ChunkType::kTensors, groups_, other);
  ExpectRefused(other, "a chunk of a profile");
  Put(ChunkType::kGroups, std::string("\0\0\0\0", 4), few);
  gradients = EncodeGradients(SmallStep(whole_.head, 1));
  Put(ChunkType::kGradients, gradients, few);
  ExpectRefused(few, "parameters of no group");
  std::string unused = Opening(), damaged = Opening();
  Put(ChunkType::kGroups, groups_, unused);
  Put(ChunkType::kValues, values_, unused);
  ExpectRefused(unused, "groups without an update");
  Put(ChunkType::kValues, values_, damaged);
  damaged.back() = static_cast<char>(~damaged.back());
  Put(ChunkType::kValues, values_, damaged);
  ExpectRefused(damaged, "values that others replace");
}

TEST_F(ProbeForgeryTest, WrongValuesAreRefused) {
  const auto refuse = [&](const std::string& payload, const std::string& what) {
    std::string bytes = Opening();
    Put(ChunkType::kValues, payload, bytes);
    ExpectRefused(bytes, what);
  };
  ProbeValues values = SmallValues(whole_.head, 1);
  values.states[0].tensor = 3;
  refuse(EncodeProbeValues(values), "of no tensor");
  values = SmallValues(whole_.head, 1);
  values.states.push_back(values.states[0]);
  refuse(EncodeProbeValues(values), "twice");
  refuse(values_ + '\0', "a byte more");
  refuse(values_.substr(1), "a byte less");
  refuse("", "empty");
}

}  // namespace
}  // namespace dlsim
