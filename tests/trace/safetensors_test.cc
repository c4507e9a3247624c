// SPDX-License-Identifier: Apache-2.0
#include "src/trace/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "tests/support/trace_test_util.h"

namespace dlsim {
namespace {

SafetensorsHeader Parse(const std::string& file) {
  return ReadSafetensorsHeader(MemorySource("t.safetensors", Bytes(file)));
}

void ExpectRefused(const std::string& file, std::initializer_list<std::string_view> words) {
  ExpectInputError([&] { Parse(file); }, {"t.safetensors: "});
  ExpectInputError([&] { Parse(file); }, words);
}

std::string Braced(const std::string& members) {
  return std::string("{").append(members).append("}");
}

std::string Listed(const std::string& items) { return std::string("[").append(items).append("]"); }

// Returns the header of one tensor 'a', e.g. Entry("F32", "[2]", "[0,8]").
std::string Entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "\"a\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}";
}

std::string OneTensor(const std::string& dtype, const std::string& shape,
                      const std::string& offsets, size_t data_bytes) {
  return SafetensorsBytes(Braced(Entry(dtype, shape, offsets)), std::string(data_bytes, 'x'));
}

const std::string kTwoTensors = SafetensorsBytes(
    R"({"b":{"dtype":"F16","shape":[2],"data_offsets":[4,8]},)"
    R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"__metadata__":{"step":"3"}}  )",
    "abcdefgh");

TEST(Safetensors, OrdersTensorsByTheirData) {
  const SafetensorsHeader header = Parse(kTwoTensors);
  ASSERT_EQ(header.tensors->size(), 2u);
  EXPECT_EQ((*header.tensors)[0].info->name, "a");
  EXPECT_EQ((*header.tensors)[1].info->name, "b");
  EXPECT_EQ((*header.tensors)[1].info->dtype, DType::kF16);
  EXPECT_EQ((*header.tensors)[1].begin, 4u);
  EXPECT_EQ(header.metadata.at("step"), "3");
  EXPECT_EQ(header.data_start, kTwoTensors.size() - 8);
}

TEST(Safetensors, ReadsEveryDType) {
  EXPECT_EQ(Parse(OneTensor("F64", "[1]", "[0,8]", 8)).tensors->front().info->dtype, DType::kF64);
  EXPECT_EQ(Parse(OneTensor("BF16", "[1]", "[0,2]", 2)).tensors->front().info->dtype, DType::kBF16);
}

TEST(Safetensors, ReadsScalarsAndEmptyTensors) {
  EXPECT_EQ(Parse(OneTensor("F32", "[]", "[0,4]", 4)).tensors->front().elements, 1u);
  EXPECT_EQ(Parse(OneTensor("F32", "[3,0]", "[0,0]", 0)).tensors->front().elements, 0u);
  EXPECT_TRUE(Parse(SafetensorsBytes("{}", "")).tensors->empty());
}

TEST(Safetensors, KeepsEmptyTensorsInHeaderOrder) {
  const SafetensorsHeader header =
      Parse(SafetensorsBytes(R"({"z":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                             R"("y":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
                             R"("x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
                             "abcd"));
  EXPECT_EQ((*header.tensors)[0].info->name, "y");
  EXPECT_EQ((*header.tensors)[1].info->name, "x");
  EXPECT_EQ((*header.tensors)[2].info->name, "z");
}

TEST(Safetensors, TakesOverTensorsThatFollowOtherMetadata) {
  const std::string tensors = R"(,"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  LatestHeader latest;
  const auto read = [&](const std::string& metadata, const std::string& data = "abcd") {
    const std::string file = SafetensorsBytes(metadata + tensors, data);
    return ReadSafetensorsHeader(MemorySource("t.safetensors", Bytes(file)), &latest);
  };
  const SafetensorsHeader first = read(R"({"__metadata__":{"step":"3"})");
  const SafetensorsHeader second = read(R"({"__metadata__":{"note":"\"}","step":"10"})");
  EXPECT_EQ(second.tensors, first.tensors);
  EXPECT_EQ(first.tensors->front().info->name, "a");
  EXPECT_EQ(second.metadata.at("note"), "\"}");
  EXPECT_EQ(second.metadata.at("step"), "10");
  EXPECT_EQ(second.data_start, first.data_start + 14);
  ExpectInputError([&] { read(R"({"__metadata__":{"a":"","a":""})"); }, {"duplicate", "'a'"});
  ExpectInputError([&] { read(R"({"__metadata__":{"a":1})"); }, {"'a'", "a string"});
  ExpectInputError([&] { read("{"); }, {"bad JSON"});
  EXPECT_NE(read(R"({"x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})").tensors,
            first.tensors);
  ExpectInputError([&] { read(R"({"__metadata__":{})", "abcde"); }, {"after the last tensor"});
}

TEST(Safetensors, RejectsTruncationAtEveryByte) {
  for (size_t size = 0; size < kTwoTensors.size(); ++size) {
    SCOPED_TRACE(size);
    ExpectRefused(kTwoTensors.substr(0, size), {});
  }
}

TEST(Safetensors, RejectsBadHeaderLengths) {
  const auto with_length = [](uint64_t length) {
    return LittleEndian(length, 8) + std::string(100, ' ');
  };
  ExpectRefused(with_length(0), {"'{'", "empty"});
  ExpectRefused(with_length(1), {"'{'"});
  ExpectRefused(with_length(101), {"beyond the file", "at most 100 bytes", "got 101"});
  ExpectRefused(with_length(uint64_t{1} << 63), {"beyond the file", "9223372036854775808"});
  ExpectRefused(with_length(~uint64_t{0}), {"beyond the file", "18446744073709551615"});
  ExpectRefused(with_length(~uint64_t{0} - 7), {"beyond the file"});
}

TEST(Safetensors, RejectsAHeaderAboveTheCapWithoutReadingIt) {
  ByteSource source = MemorySource("t.safetensors", {});
  source.size = 300'000'000;
  source.read = [](uint64_t, std::span<std::byte> out) {
    ASSERT_EQ(out.size(), 8u);
    const std::string length = LittleEndian(100'000'001, 8);
    std::copy_n(Bytes(length).begin(), 8, out.begin());
  };
  ExpectInputError([&] { ReadSafetensorsHeader(source); }, {"header too long", "100000001"});
}

TEST(Safetensors, RejectsShapesThatWrap) {
  for (const char* shape :
       {"[4294967296,4294967296]", "[0,4294967296,4294967296]", "[4294967296,4294967296,0]",
        "[281474976710656,65536,0]", "[281474976710656,16384]"}) {
    SCOPED_TRACE(shape);
    ExpectRefused(OneTensor("F32", shape, "[0,0]", 0), {"tensor 'a'", "too large"});
  }
}

TEST(Safetensors, RejectsOffsetsThatDoNotTileTheFile) {
  ExpectRefused(OneTensor("F32", "[2]", "[8,0]", 8), {"tensor 'a'", "do not fit", "8 bytes"});
  ExpectRefused(OneTensor("F32", "[2]", "[0,4]", 8), {"tensor 'a'", "do not fit", "[0, 4]"});
  ExpectRefused(OneTensor("F32", "[2]", "[4,12]", 12), {"tensor 'a'", "hole"});
  ExpectRefused(OneTensor("F32", "[2]", "[0,8]", 9), {"bytes after the last", "got 9"});
  ExpectRefused(OneTensor("F32", "[4]", "[0,16]", 8), {"cut off", "expected 16", "got 8"});
  ExpectRefused(SafetensorsBytes("{}", "x"), {"bytes after the last"});
  const std::string second = R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":)";
  ExpectRefused(SafetensorsBytes(Braced(Entry("F32", "[2]", "[0,8]") + second + "[4,12]}"),
                                 std::string(12, 'x')),
                {"tensor 'b'", "overlaps"});
  ExpectRefused(SafetensorsBytes(Braced(Entry("F32", "[2]", "[0,8]") + second + "[0,8]}"),
                                 std::string(8, 'x')),
                {"tensor 'b'", "overlaps"});
}

TEST(Safetensors, RejectsUnsupportedAndUnknownDTypes) {
  for (const char* dtype : {"I64", "U16", "BOOL", "F8_E4M3", "F4", "C64"}) {
    EXPECT_EQ(Parse(OneTensor(dtype, "[0]", "[0,0]", 0)).tensors->front().unsupported, dtype);
  }
  ExpectRefused(OneTensor("I64", "[1]", "[8,0]", 8), {"data_offsets do not ascend"});
  ExpectRefused(OneTensor("f32", "[0]", "[0,0]", 0), {"unknown dtype", "F32, F64, F16 or BF16"});
}

TEST(Safetensors, RejectsNumbersThatAreNoSizes) {
  for (const char* number : {"-1", "-0", "1.0", "1e2", "281474976710657", "18446744073709551616",
                             "null", "true", "\"1\"", "[1]", "{}"}) {
    SCOPED_TRACE(number);
    const std::string text = number;
    ExpectRefused(OneTensor("F32", Listed(text), "[0,4]", 4), {"tensor 'a'", "shape"});
    ExpectRefused(OneTensor("F32", "[1]", Listed("0," + text), 4), {"tensor 'a'", "data_offsets"});
  }
}

TEST(Safetensors, RejectsBadEntries) {
  ExpectRefused(OneTensor("F32", "1", "[0,4]", 4), {"shape", "array"});
  ExpectRefused(OneTensor("F32", "[1]", "[0]", 4), {"too few", "expected 2"});
  ExpectRefused(OneTensor("F32", "[1]", "[0,4,8]", 4), {"more than 2"});
  ExpectRefused(SafetensorsBytes(R"({"a":[]})", ""), {"'a'", "an object"});
  ExpectRefused(SafetensorsBytes(R"({"a":3})", ""), {"'a'", "an object", "got 3"});
  ExpectRefused(SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[]}})", ""),
                {"tensor 'a'", "'data_offsets' missing"});
  ExpectRefused(SafetensorsBytes(R"({"a":{"strides":[]}})", ""), {"unknown field", "'strides'"});
  ExpectRefused(SafetensorsBytes(R"({"a":{"dtype":3}})", ""), {"dtype", "a string", "got 3"});
}

TEST(Safetensors, RejectsDuplicateKeysAtEveryLevel) {
  const std::string entry = Entry("F32", "[0]", "[0,0]");
  ExpectRefused(SafetensorsBytes(Braced(entry + "," + entry), ""),
                {"tensor 'a'", "duplicate name"});
  ExpectRefused(SafetensorsBytes(R"({"a":{"dtype":"F32","dtype":"F32"}})", ""),
                {"tensor 'a'", "duplicate field 'dtype'"});
  ExpectRefused(SafetensorsBytes(R"({"__metadata__":{"k":"1","k":"2"}})", ""),
                {"duplicate metadata key 'k'"});
  ExpectRefused(SafetensorsBytes(R"({"__metadata__":{},"__metadata__":{}})", ""),
                {"duplicate key '__metadata__'"});
}

TEST(Safetensors, RejectsMetadataThatIsNotText) {
  ExpectRefused(SafetensorsBytes(R"({"__metadata__":{"k":1}})", ""), {"metadata 'k'", "a string"});
  ExpectRefused(SafetensorsBytes(R"({"__metadata__":{"k":{}}})", ""), {"metadata 'k'"});
  ExpectRefused(SafetensorsBytes(R"({"__metadata__":[]})", ""), {"'__metadata__'", "an object"});
}

TEST(Safetensors, RejectsWhatIsNotJson) {
  ExpectRefused(SafetensorsBytes(" {}", ""), {"does not begin with '{'"});
  ExpectRefused(SafetensorsBytes("{} {}", ""), {"bad JSON"});
  ExpectRefused(SafetensorsBytes("{\"a\"\n:}", ""), {"bad JSON", "line 2"});
  ExpectRefused(SafetensorsBytes("{/**/}", ""), {"bad JSON"});
  ExpectRefused(SafetensorsBytes("{\"\xFF\":{}}", ""), {"bad JSON"});
  ExpectRefused(SafetensorsBytes("{\"\xED\xA0\x80\":{}}", ""), {"bad JSON"});
  ExpectRefused(SafetensorsBytes(std::string_view("{}\0garbage", 10), ""), {"zero byte"});
}

TEST(Safetensors, RejectsDeepNestingWithoutRecursion) {
  ExpectRefused(SafetensorsBytes(R"({"a":)" + std::string(100'000, '['), ""), {"'a'"});
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  ExpectRefused(SafetensorsBytes(objects, ""), {"unknown field"});
  ExpectRefused(SafetensorsBytes(R"({"a":{"shape":)" + std::string(100'000, '['), ""), {"shape"});
}

TEST(Safetensors, RejectsWhatExceedsTheCaps) {
  const std::string long_name(4097, 'n');
  ExpectRefused(SafetensorsBytes(Braced(std::string("\"").append(long_name).append("\":{}")), ""),
                {"name too long", "4097"});
  std::string ones = "1";
  for (int i = 0; i < 32; ++i) ones += ",1";
  ExpectRefused(OneTensor("F32", Listed(ones), "[0,4]", 4), {"too many dimensions", "32"});
}

TEST(Safetensors, PrintsHostileNamesSafely) {
  ExpectRefused(SafetensorsBytes("{\"\\n\\u001b[2J\":{\"dtype\":\"I9\"", ""),
                {"tensor '\\x0a\\x1b[2J'", "unknown dtype"});
}

// A file on disk.
class SafetensorsFile : public testing::Test {
 protected:
  TempDir dir_;
};

TEST_F(SafetensorsFile, GivesTheBytesOfEachTensor) {
  const std::string path = dir_.Write("x.safetensors", kTwoTensors);
  const TraceReader reader = OpenTrace({path});
  EXPECT_EQ(reader.step_number(0), 3);
  EXPECT_EQ(reader.file_bytes(), kTwoTensors.size());
  const TraceStep step = reader.Load(0);
  ASSERT_EQ(step.recordings.size(), 1u);
  ASSERT_EQ(step.recordings[0].tensors.size(), 2u);
  EXPECT_EQ(TensorBytes(step.recordings[0].tensors[0]), "abcd");
  EXPECT_EQ(TensorBytes(step.recordings[0].tensors[1]), "efgh");
}

TEST_F(SafetensorsFile, StaysValidWithoutTheReader) {
  const std::string path = dir_.Write("x.safetensors", kTwoTensors);
  const TraceStep step = OpenTrace({path}).Load(0);
  std::filesystem::remove(path);
  EXPECT_EQ(TensorBytes(step.recordings[0].tensors[1]), "efgh");
}

TEST_F(SafetensorsFile, IsNamedIfItIsCutMeanwhile) {
  const std::string path = dir_.Write("x.safetensors", kTwoTensors);
  const TraceStep step = OpenTrace({path}).Load(0);
  EXPECT_EQ(truncate(path.c_str(), static_cast<off_t>(kTwoTensors.size() - 2)), 0);
  EXPECT_EQ(TensorBytes(step.recordings[0].tensors[0]), "abcd");
  ExpectInputError([&] { TensorBytes(step.recordings[0].tensors[1]); },
                   {"x.safetensors: was cut while being read, expected ", " bytes, got "});
}

TEST_F(SafetensorsFile, RejectsTruncationAtEveryByte) {
  for (size_t size = 0; size < kTwoTensors.size(); ++size) {
    const std::string path = dir_.Write("step-1.safetensors", kTwoTensors.substr(0, size));
    ExpectInputError([&] { OpenTrace({path}).Load(0); }, {"step-1.safetensors: "});
  }
}

TEST_F(SafetensorsFile, NamesWhatCannotBeOpened) {
  const std::string empty = dir_.Write("empty.safetensors", "");
  ExpectInputError([&] { OpenTrace({empty}); }, {"empty.safetensors", "at least 8"});
  ExpectInputError([&] { OpenTrace({dir_.path() + "/no.safetensors"}); },
                   {"no.safetensors", "No such file"});
  std::filesystem::create_directory(dir_.path() + "/step-0.safetensors");
  ExpectInputError([&] { OpenTrace({dir_.path()}).Load(0); },
                   {"step-0.safetensors", "cannot be read"});
}

TEST_F(SafetensorsFile, NamesAnUnreadableFile) {
  const std::string path = dir_.Write("x.safetensors", kTwoTensors);
  std::filesystem::permissions(path, std::filesystem::perms::none);
  if (access(path.c_str(), R_OK) == 0) GTEST_SKIP() << "this user can read every file";
  ExpectInputError([&] { OpenTrace({path}); }, {"x.safetensors", "Permission denied"});
}

}  // namespace
}  // namespace dlsim
