// SPDX-License-Identifier: Apache-2.0
#include "src/trace/npz.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "tests/support/trace_test_util.h"
#include "tests/support/zip_builder.h"

namespace dlsim {
namespace {

std::string NpyBytes(std::initializer_list<float> values) {
  const std::array<uint64_t, 1> shape = {values.size()};
  return MakeNpyHeader("<f4", shape) + Float32Bytes(values);
}

class Npz : public testing::Test {
 protected:
  std::string Write(const std::vector<ZipMember>& members) {
    return dir_.Write("t.npz", ZipBytes(members));
  }

  void ExpectRefused(const std::vector<ZipMember>& members,
                     std::initializer_list<std::string_view> words) {
    const std::string path = Write(members);
    ExpectInputError([&] { ReadWholeTrace({path}); }, {"t.npz: "});
    ExpectInputError([&] { ReadWholeTrace({path}); }, words);
  }

  TempDir dir_;
};

const std::string kArray = NpyBytes({1, 2, 3});

TEST_F(Npz, ReadsStoredAndDeflatedMembers) {
  const std::string path =
      Write({{.name = "w.grad.npy", .data = kArray}, Deflated("x.act_grad.npy", NpyBytes({4, 5}))});
  const TraceStep step = OpenTrace({path}).Load(0);
  EXPECT_EQ(step.recordings[0].file_bytes, std::filesystem::file_size(path));
  ASSERT_EQ(step.recordings[0].tensors.size(), 2u);
  const TraceTensor& w = step.recordings[0].tensors[0];
  const TraceTensor& x = step.recordings[0].tensors[1];
  EXPECT_EQ(w.info->name, "w.grad");
  EXPECT_EQ(w.info->role, Role::kGrad);
  EXPECT_EQ(x.info->role, Role::kActGrad);
  EXPECT_EQ(TensorBytes(w), Float32Bytes({1, 2, 3}));
  EXPECT_EQ(TensorBytes(x), Float32Bytes({4, 5}));
}

TEST_F(Npz, ReadsAgainFromASmallerOffset) {
  const std::string path = Write({{.name = "a.npy", .data = kArray}, Deflated("b.npy", kArray)});
  const TraceStep step = OpenTrace({path}).Load(0);
  for (const TraceTensor& tensor : step.recordings[0].tensors) {
    for (const size_t block : {size_t{12}, size_t{5}, size_t{1}}) {
      EXPECT_EQ(TensorBytes(tensor, block), Float32Bytes({1, 2, 3}));
    }
    std::array<std::byte, 2> two{};
    tensor.Read(6, two);
    EXPECT_EQ(std::to_integer<int>(two[1]), 0x40);  // of 2.0f
    tensor.Read(2, two);
    EXPECT_EQ(std::to_integer<int>(two[1]), 0x3F);  // of 1.0f
  }
}

// As threads ask that work on one block each, chunk by chunk.
TEST_F(Npz, ReadsBlocksInNearlyAnyOrder) {
  std::vector<float> values(64);
  std::iota(values.begin(), values.end(), 1.0f);
  const std::array<uint64_t, 1> shape = {values.size()};
  const std::string bytes(reinterpret_cast<const char*>(values.data()),
                          values.size() * sizeof(float));
  const TraceStep step =
      OpenTrace({Write({Deflated("a.npy", MakeNpyHeader("<f4", shape) + bytes)})}).Load(0);
  const TraceTensor& tensor = step.recordings[0].tensors[0];
  std::string read(bytes.size(), '\0');
  for (const size_t block : {0, 2, 1, 5, 7, 3, 4, 6, 1}) {
    for (const size_t begin : {32 * block, 32 * block + 16}) {
      tensor.Read(begin, std::as_writable_bytes(std::span(read).subspan(begin, 16)));
    }
  }
  EXPECT_EQ(read, bytes);
}

TEST_F(Npz, TheDataOutliveTheReader) {
  const TraceStep step = OpenTrace({Write({{.name = "a.npy", .data = kArray}})}).Load(0);
  EXPECT_EQ(TensorBytes(step.recordings[0].tensors[0]), Float32Bytes({1, 2, 3}));
}

TEST_F(Npz, ReadsOnlyTheSelectedArrays) {
  const std::string path =
      Write({{.name = "a.npy", .data = kArray}, {.name = "step.npy", .data = "no header"}});
  const TraceOptions options{.tensors = "a*", .npy_void2 = {}, .ranks = {}};
  EXPECT_EQ(ReadWholeTrace({path}, options), 12u);
}

TEST_F(Npz, AnotherTypeNamesTheOptionThatLeavesItOut) {
  std::string count = NpyBytes({4});
  count.replace(count.find("<f4"), 3, "<i8");
  const std::string path =
      Write({{.name = "a.npy", .data = kArray}, {.name = "step.npy", .data = count}});
  ExpectInputError([&] { OpenTrace({path}).Load(0); },
                   {"tensor 'step'", "<f2, <f4 or <f8, or --tensors with a pattern", "'<i8'"});
}

TEST_F(Npz, NamesMayLookLikePaths) {
  for (const std::string name : {"decoder/layer_0/kernel", "../a", "/a", "d\\a"}) {
    const TraceStep step = OpenTrace({Write({{.name = name + ".npy", .data = kArray}})}).Load(0);
    EXPECT_EQ(step.recordings[0].tensors[0].info->name, name);
    EXPECT_EQ(TensorBytes(step.recordings[0].tensors[0]), Float32Bytes({1, 2, 3}));
  }
}

TEST_F(Npz, RejectsNamesThatNumpyDoesNotWrite) {
  for (const char* name : {"a.txt", ".npy", "a", "d/", ""}) {
    ExpectRefused({{.name = name, .data = kArray}}, {"is not an array", ".npy"});
  }
  ExpectRefused({{.name = "a.npy", .data = kArray}, {.name = "a.npy", .data = kArray}},
                {"duplicate name"});
  ExpectRefused({{.name = std::string(4097, 'n') + ".npy", .data = kArray}}, {"name too long"});
}

TEST_F(Npz, RejectsEncryptionAndOtherMethods) {
  ExpectRefused({{.name = "a.npy", .data = kArray, .method = 0, .flags = 1}}, {"encrypted"});
  ExpectRefused({{.name = "a.npy", .data = kArray, .method = 12}}, {"unsupported compression"});
}

TEST_F(Npz, RejectsWhatIsNoArchive) {
  for (const std::string& bytes : {std::string(), std::string("PK\3\4"), kArray}) {
    const std::string path = dir_.Write("bad.npz", bytes);
    ExpectInputError([&] { ReadWholeTrace({path}); }, {"bad.npz: "});
  }
}

TEST_F(Npz, FindsAWrongChecksumWhenReading) {
  for (ZipMember member : {ZipMember{.name = "a.npy", .data = kArray}, Deflated("a.npy", kArray)}) {
    member.crc = 0x12345678;
    const std::string path = Write({member});
    EXPECT_NO_THROW(OpenTrace({path}).Load(0));
    ExpectInputError([&] { ReadWholeTrace({path}); }, {"t.npz: tensor 'a'", "CRC"});
  }
}

TEST_F(Npz, RejectsDeclaredSizesThatAreWrong) {
  ExpectRefused({{.name = "a.npy", .data = kArray + "x"}}, {"wrong size", "got 13"});
  ExpectRefused({{.name = "a.npy", .data = kArray.substr(0, 130)}}, {"wrong size"});
  ZipMember stored{.name = "a.npy", .data = kArray};
  stored.size = 4096;
  ExpectRefused({stored}, {"two different sizes"});
  // The sizes fit each other, but not the stream.
  ZipMember longer = Deflated("a.npy", kArray);
  longer.data = Deflate(kArray + "more");
  ExpectRefused({longer}, {"tensor 'a'"});
  ZipMember shorter = Deflated("a.npy", kArray);
  shorter.data = Deflate(kArray.substr(0, kArray.size() - 4));
  ExpectRefused({shorter}, {"tensor 'a'"});
}

TEST_F(Npz, RejectsImpossibleCompression) {
  ZipMember bomb = Deflated("a.npy", kArray);
  bomb.size = 4'000'000'000;
  ExpectRefused({bomb}, {"impossible size", "1032", "4000000000"});
}

TEST_F(Npz, RejectsMembersThatShareTheirData) {
  const std::string data = kArray + std::string(1000, 'x');
  ExpectRefused({{.name = "a.npy", .data = data},
                 {.name = "b.npy", .data = "", .compressed_size = 1140, .offset = 0}},
                {});
  // The same local header, with the same name in both entries of the directory.
  ExpectRefused({{.name = "a.npy", .data = data}, {.name = "a.npy", .data = data, .offset = 0}},
                {});
}

TEST_F(Npz, RejectsMembersLargerThanTheArchive) {
  ZipMember huge{.name = "a.npy", .data = kArray};
  huge.size = 3'000'000'000;
  huge.compressed_size = 3'000'000'000;
  ExpectRefused({huge}, {"t.npz"});
}

// 1.1 GB of zeros in 7 MB: the first 64 MB are read without holding more than a block.
TEST_F(Npz, ReadsAHugeMemberInConstantMemory) {
  constexpr uint64_t kRepeats = 4'300'000;
  const uint64_t elements = 1 + kRepeats * 258 / 4;
  const std::array<uint64_t, 1> shape = {elements};
  ZipMember member{.name = "zeros.npy", .data = "", .method = 8};
  std::string start = MakeNpyHeader("<f4", shape);
  member.size = static_cast<uint32_t>(start.size() + elements * 4);
  start.append(elements * 4 - kRepeats * 258, '\0');
  member.data = Deflate(start, kRepeats);
  member.crc = 0;  // never reached
  const std::string path = Write({member});
  const TraceStep step = OpenTrace({path}).Load(0);
  const TraceTensor& tensor = step.recordings[0].tensors[0];
  ASSERT_GT(tensor.elements * 4, uint64_t{1} << 30);
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  std::vector<std::byte> block(1 << 20);
  for (uint64_t i = 0; i < 64; ++i) tensor.Read(i * block.size(), block);
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 16 << 10) << "KiB";
}

TEST_F(Npz, RejectsTruncationAtEveryByte) {
  const std::string archive = ZipBytes({{.name = "a.npy", .data = kArray}});
  for (size_t size = 0; size < archive.size(); ++size) {
    const std::string path = dir_.Write("t.npz", archive.substr(0, size));
    ExpectInputError([&] { ReadWholeTrace({path}); }, {"t.npz"});
  }
}

TEST_F(Npz, SurvivesEveryFlippedByte) {
  const std::string archive =
      ZipBytes({{.name = "a.npy", .data = kArray}, Deflated("b.npy", kArray)});
  for (size_t i = 0; i < archive.size(); ++i) {
    for (const int mask : {0x01, 0x10, 0xFF}) {
      std::string damaged = archive;
      damaged[i] = static_cast<char>(damaged[i] ^ mask);
      try {
        ReadWholeTrace({dir_.Write("t.npz", damaged)});
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInput);
      }
    }
  }
}

}  // namespace
}  // namespace dlsim
