// SPDX-License-Identifier: Apache-2.0
#include "src/trace/npy.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "tests/support/trace_test_util.h"

namespace dlsim {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

NpyHeader ParseNpy(const std::string& file) {
  return ReadNpyHeader(MemorySource("t.npy", Bytes(file)));
}

void ExpectNpyRefused(const std::string& file, std::initializer_list<std::string_view> words) {
  ExpectInputError([&] { ParseNpy(file); }, {"t.npy: "});
  ExpectInputError([&] { ParseNpy(file); }, words);
}

// Returns a file of version 1.0 with the given dictionary.
std::string Npy(const std::string& dict, size_t data_bytes = 0) {
  const std::string text = dict + "\n";
  return std::string(kMagic) + std::string("\1\0", 2) + LittleEndian(text.size(), 2) + text +
         std::string(data_bytes, 'x');
}

std::string NpyOf(const std::string& descr, const std::string& shape, size_t data_bytes) {
  return Npy("{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape + ", }",
             data_bytes);
}

TEST(Npy, ReadsWhatItWrites) {
  const std::array<uint64_t, 3> shape = {2, 3, 4};
  for (const std::string_view type : {"<f2", "<f4", "<f8", "<u2", "<u4", "|V2"}) {
    for (size_t rank = 0; rank <= 3; ++rank) {
      const std::span<const uint64_t> used = std::span(shape).first(rank);
      const std::string header = MakeNpyHeader(type, used, rank == 2);
      EXPECT_EQ(header.size() % 64, 0u);
      EXPECT_EQ(header.back(), '\n');
      const size_t elements = rank == 0 ? 1 : rank == 1 ? 2 : rank == 2 ? 6 : 24;
      const NpyHeader read =
          ParseNpy(header + std::string(elements * static_cast<size_t>(type[2] - '0'), 'x'));
      EXPECT_EQ(read.descr, type);
      EXPECT_EQ(read.fortran_order, rank == 2);
      EXPECT_EQ(read.shape, std::vector<uint64_t>(used.begin(), used.end()));
      EXPECT_EQ(read.elements, elements);
      EXPECT_EQ(read.data_start, header.size());
    }
  }
}

TEST(Npy, WritesThePythonOfNumpy) {
  const std::array<uint64_t, 2> shape = {3, 4};
  const std::string dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }";
  EXPECT_EQ(MakeNpyHeader("<f4", shape).substr(10, dict.size()), dict);
  EXPECT_NE(MakeNpyHeader("<f4", std::span(shape).first(1)).find("(3,), }"), std::string::npos);
}

TEST(Npy, WritesVersion2WhenTheHeaderIsLong) {
  const std::vector<uint64_t> shape(30'000, 1);
  const std::string header = MakeNpyHeader("<f4", shape);
  EXPECT_EQ(header[6], '\2');
  EXPECT_EQ(header.size() % 64, 0u);
}

TEST(Npy, ReadsVersions2And3AndAnyKeyOrder) {
  const std::string text = "{\"shape\": (1,),'fortran_order':True , 'descr':'<f8'}   \n";
  for (const char version : {'\2', '\3'}) {
    const NpyHeader header = ParseNpy(std::string(kMagic) + version + '\0' +
                                      LittleEndian(text.size(), 4) + text + std::string(8, 'x'));
    EXPECT_EQ(header.descr, "<f8");
    EXPECT_TRUE(header.fortran_order);
  }
}

TEST(Npy, RejectsTruncationAtEveryByte) {
  const std::string file = NpyOf("'<f4'", "(2,)", 8);
  for (size_t size = 0; size < file.size(); ++size) ExpectNpyRefused(file.substr(0, size), {});
  ExpectNpyRefused(file + "x", {"wrong size", "expected 8 bytes", "got 9"});
}

TEST(Npy, RejectsOtherFormats) {
  ExpectNpyRefused("PK\3\4 and so on, not numpy", {"wrong magic"});
  std::string file = NpyOf("'<f4'", "(2,)", 8);
  file[6] = '\4';
  ExpectNpyRefused(file, {"unsupported .npy version", "got 4.0"});
  file[6] = '\1';
  file[7] = '\1';
  ExpectNpyRefused(file, {"unsupported .npy version", "got 1.1"});
}

TEST(Npy, RejectsHugeHeaders) {
  const std::string prefix = std::string(kMagic) + std::string("\2\0", 2);
  ExpectNpyRefused(prefix + LittleEndian(0xFFFFFFFF, 4), {"beyond the file", "4294967295"});
  ExpectNpyRefused(prefix + LittleEndian(70'000, 4) + std::string(70'000, ' '), {"too long"});
}

TEST(Npy, RejectsOtherTypes) {
  for (const char* descr : {"'>f4'", "'>u2'"}) {
    ExpectNpyRefused(NpyOf(descr, "()", 4), {"unsupported dtype (big-endian)"});
  }
  for (const char* descr : {"'|b1'", "'<i4'", "'=f4'", "'f4'", "'|O'", "'<c8'", "''", "'|V4'"}) {
    ExpectNpyRefused(NpyOf(descr, "()", 4), {"unsupported dtype", "<f4"});
  }
  ExpectNpyRefused(NpyOf("[('a', '<f4')]", "()", 4), {"several fields"});
}

TEST(Npy, RejectsBadDictionaries) {
  for (const char* dict :
       {"", "{", "}", "{}", "[]", "{'descr': '<f4'}", "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': ()}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (), 'x': 1}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': ()}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': ()",
        "{'descr': '<f4', 'fortran_order': False, 'shape': ()} x",
        "{'descr': '<f4', 'fortran_order': False 'shape': ()}",
        "{'descr': '<f4\\x00', 'fortran_order': False, 'shape': ()}", "{'descr"}) {
    SCOPED_TRACE(dict);
    ExpectNpyRefused(Npy(dict, 4), {});
  }
}

TEST(Npy, RejectsBadShapes) {
  for (const char* shape : {"(1)", "1", "(-1,)", "(1.0,)", "(01,)", "(1L,)", "(,)", "(1,,)",
                            "(1 2)", "(18446744073709551616,)", "[1]", "('1',)", "(None,)"}) {
    SCOPED_TRACE(shape);
    ExpectNpyRefused(NpyOf("'<f4'", shape, 4), {"bad header"});
  }
  for (const char* shape : {"(4294967296, 4294967296)", "(0, 4294967296, 4294967296)",
                            "(4294967296, 4294967296, 0)", "(4611686018427387904,)"}) {
    ExpectNpyRefused(NpyOf("'<f4'", shape, 0), {"too large"});
  }
  std::string ones;
  for (int i = 0; i < 33; ++i) ones += "1,";
  ExpectNpyRefused(NpyOf("'<f4'", "(" + ones + ")", 4), {"too many dimensions"});
}

TEST(Npy, ATraceAsksWhatV2Means) {
  TempDir dir;
  const std::string path = dir.Write("w.npy", NpyOf("'|V2'", "(2,)", 4));
  ExpectInputError([&] { OpenTrace({path}).Load(0); }, {"w.npy", "--npy-void bf16"});
  const TraceOptions options{.tensors = "*", .npy_void2 = DType::kBF16, .ranks = {}};
  const TraceStep step = OpenTrace({path}, options).Load(0);
  EXPECT_EQ(step.recordings[0].tensors[0].info->dtype, DType::kBF16);
  EXPECT_EQ(step.recordings[0].file_bytes, std::filesystem::file_size(path));
  EXPECT_EQ(ParseNpy(NpyOf("'<V2'", "(2,)", 4)).descr, "|V2");
}

TEST(Npy, ATraceRefusesCodes) {
  TempDir dir;
  const std::string path = dir.Write("codes.npy", NpyOf("'<u2'", "(2,)", 4));
  ExpectInputError([&] { OpenTrace({path}).Load(0); },
                   {"codes.npy", "unsupported dtype", "<f2, <f4 or <f8", "<u2"});
}

TEST(Npy, ATraceIsOneTensorNamedAfterTheFile) {
  TempDir dir;
  const std::string file = NpyOf("'<f4'", "(1, 2)", 0) + Float32Bytes({1, 2});
  const std::string path = dir.Write("fc.weight.act_grad.npy", file);
  const TraceStep step = OpenTrace({path}).Load(0);
  const TraceTensor& tensor = step.recordings[0].tensors[0];
  EXPECT_EQ(tensor.info->name, "fc.weight.act_grad");
  EXPECT_EQ(tensor.info->role, Role::kActGrad);
  EXPECT_EQ(tensor.info->shape, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(TensorBytes(tensor), Float32Bytes({1, 2}));
}

TEST(Npy, ADirectoryOfTensorsIsOneStep) {
  TempDir dir;
  const auto write = [&](const std::string& name, float value) {
    return dir.Write(name, NpyOf("'<f4'", "(2,)", 0) + Float32Bytes({value, 2}));
  };
  const std::vector<std::string> files = {write("conv1.weight.act_grad.npy", 1),
                                          write("fc.1.npy", 3), write("fc.10.npy", 5)};
  const TraceReader trace = OpenTrace({dir.path()});
  ASSERT_EQ(trace.step_count(), 1u);
  EXPECT_EQ(trace.files(0), files);
  EXPECT_EQ(trace.notes(),
            std::vector<std::string>{dir.path() +
                                     ": read as one step, whose tensors are the 3 .npy files"});
  const TraceStep step = trace.Load(0);
  const std::vector<TraceTensor>& tensors = step.recordings.at(0).tensors;
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(step.recordings[0].file_bytes, trace.file_bytes());
  EXPECT_EQ(tensors[0].info->name, "conv1.weight.act_grad");
  EXPECT_EQ(tensors[0].info->role, Role::kActGrad);
  EXPECT_EQ(tensors[2].info->name, "fc.10");
  EXPECT_EQ(TensorBytes(tensors[2]), Float32Bytes({5, 2}));
  TraceOptions of_fc;
  of_fc.tensors = "fc.*";
  const std::vector<std::string> paths = {dir.path()};
  EXPECT_EQ(TraceReader::Open(paths, of_fc).Load(0).recordings[0].tensors.size(), 2u);
}

// What a directory of .npy files that differ in a number is read as.
struct NumberedArrays {
  const char* begin;      // of the names
  const char* shapes[2];  // of the two files, numbered 1 and 10
  size_t steps;           // 0 = refused
};

TEST(Npy, ADirectoryOfNumberedFilesIsStepsOrTensors) {
  constexpr NumberedArrays kDirectories[] = {
      {"grads_", {"(2,)", "(2,)"}, 2}, {"", {"(2,)", "(2,)"}, 2},
      {"step", {"(2,)", "(1,)"}, 2},   {"grads_", {"(2,)", "(1,)"}, 1},
      {"", {"(2,)", "(1,)"}, 1},       {"conv", {"(2,)", "(1,)"}, 1},
      {"conv", {"(2,)", "(2,)"}, 1},   {"enc.layer_", {"(2,)", "(2,)"}, 1},
      {"w_", {"(2,)", "(1,)"}, 1},     {"x", {"(2,)", "(1,)"}, 1},
      {"x", {"(2,)", "(2,)"}, 0},      {"rank", {"(2,)", "(2,)"}, 0},
  };
  for (const NumberedArrays& arrays : kDirectories) {
    SCOPED_TRACE(std::string(arrays.begin) + arrays.shapes[1]);
    TempDir dir;
    const std::string begin = arrays.begin;
    for (size_t i = 0; i < 2; ++i) {
      dir.Write(begin + (i == 0 ? "1" : "10") + ".npy",
                NpyOf("'<f4'", arrays.shapes[i], arrays.shapes[i][1] == '2' ? 8 : 4));
    }
    if (arrays.steps == 0) {
      ExpectInputError([&] { OpenTrace({dir.path()}); }, {"numbers in its names", "steps"});
    } else {
      EXPECT_EQ(OpenTrace({dir.path()}).step_count(), arrays.steps);
    }
  }
}

TEST(Npy, TensorsOfSeveralStepsInOneDirectoryAreRefused) {
  TempDir dir;
  for (const char* name : {"fc1_step1.npy", "fc1_step2.npy", "fc2_step1.npy", "fc2_step2.npy"}) {
    dir.Write(name, NpyOf("'<f4'", "(2,)", 8));
  }
  ExpectInputError([&] { OpenTrace({dir.path()}); }, {"tensors of several steps", "step-12.npz"});
}

TEST(Npy, TensorsGivenOneByOneAreNoSteps) {
  TempDir dir;
  const std::string w = dir.Write("w.npy", NpyOf("'<f4'", "(2,)", 8));
  const std::string b = dir.Write("b.npy", NpyOf("'<f4'", "(1,)", 4));
  ExpectInputError([&] { OpenTrace({w, b}); }, {"as single files", "expected their directory"});
  const std::string later = dir.Write("later.npy", NpyOf("'<f4'", "(2,)", 8));
  EXPECT_EQ(OpenTrace({w, later}).step_count(), 2u);
}

TEST(Npy, SurvivesEveryFlippedByte) {
  TempDir dir;
  const std::string file = NpyOf("'<f4'", "(2,)", 8);
  for (size_t i = 0; i < file.size(); ++i) {
    for (const int mask : {0x01, 0x10, 0x80, 0xFF}) {
      std::string damaged = file;
      damaged[i] = static_cast<char>(damaged[i] ^ mask);
      try {
        ReadWholeTrace({dir.Write("x.npy", damaged)});
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInput);
      }
    }
  }
}

}  // namespace
}  // namespace dlsim
