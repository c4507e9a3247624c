// SPDX-License-Identifier: Apache-2.0
#include "src/trace/recording.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/trace_test_util.h"
#include "tests/support/zip_builder.h"

namespace dlsim {
namespace {

class Dumps : public TraceDirectoryTest {
 protected:
  // Returns an array of `steps` x 2 whose values count up from `first`.
  static std::string Stack(uint64_t steps, float first, bool fortran = false) {
    const std::array<uint64_t, 2> shape = {steps, 2};
    std::string bytes = MakeNpyHeader("<f4", shape, fortran);
    for (uint64_t i = 0; i < 2 * steps; ++i) bytes += Float32Bytes({first + static_cast<float>(i)});
    return bytes;
  }
  // An array of a type that no gradient has.
  static std::string Masks() {
    std::string bytes = MakeNpyHeader("<f2", kNone);
    return bytes.replace(bytes.find("<f2"), 3, "|b1");
  }
  static constexpr std::array<uint64_t, 1> kNone = {0};

  std::string WriteDump(const std::string& name, const std::vector<ZipMember>& members) {
    return dir_.Write(name, ZipBytes(members));
  }
  void WriteThreeDumps() {
    WriteDump("act_dumps.npz", {{.name = "mask.fwd.npy", .data = Masks()},
                                {.name = "fc.bwd.0.npy", .data = Stack(2, 0)},
                                Deflated("fc.bwd.weight.npy", Stack(2, 10))});
    WriteDump("act_dumps_2.npz", {{.name = "fc.bwd.npy", .data = Stack(1, 20)}});
    WriteDump("act_dumps_10.npz", {{.name = "ids.fwd.0.npy", .data = MakeNpyHeader("<u4", kNone)},
                                   {.name = "fc.bwd.npy", .data = Stack(1, 30)}});
  }
};

TEST_F(Dumps, GiveOneStepPerSlice) {
  WriteThreeDumps();
  const TraceReader reader = Open();
  EXPECT_EQ(StepNumbers(reader), (std::vector<int64_t>{0, 1, 2, 3}));
  const TraceStep step = reader.Load(1);
  EXPECT_EQ(step.recordings[0].file_bytes, std::filesystem::file_size(Path("act_dumps.npz")));
  ASSERT_EQ(step.recordings[0].tensors.size(), 2u);
  const TraceTensor& input = step.recordings[0].tensors[0];
  const TraceTensor& weight = step.recordings[0].tensors[1];
  EXPECT_EQ(input.info->role, Role::kActGrad);
  EXPECT_EQ(weight.info->role, Role::kGrad);
  EXPECT_EQ(weight.info->shape, std::vector<uint64_t>{2});
  EXPECT_EQ(TensorBytes(input), Float32Bytes({2, 3}));
  EXPECT_EQ(TensorBytes(weight), Float32Bytes({12, 13}));
  EXPECT_EQ(TensorBytes(reader.Load(0).recordings[0].tensors[0]), Float32Bytes({0, 1}));
  EXPECT_EQ(TensorBytes(reader.Load(2).recordings[0].tensors[0]), Float32Bytes({20, 21}));
  EXPECT_EQ(TensorBytes(reader.Load(3).recordings[0].tensors[0]), Float32Bytes({30, 31}));
}

TEST_F(Dumps, HaveTheForwardPass) {
  WriteDump("act_dumps.npz", {{.name = "fc.fwd.npy", .data = Stack(2, 0)},
                              Deflated("fc.call1.fwd.1.npy", Stack(2, 10)),
                              {.name = "fc.bwd.npy", .data = Stack(2, 20)}});
  const TraceReader reader = Open();
  EXPECT_TRUE(reader.notes().empty());
  const TraceStep step = reader.Load(1);
  const std::vector<TraceTensor>& tensors = step.recordings[0].tensors;
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].info->role, Role::kAct);
  EXPECT_EQ(tensors[1].info->role, Role::kAct);
  EXPECT_EQ(tensors[2].info->role, Role::kActGrad);
  EXPECT_EQ(TensorBytes(tensors[0]), Float32Bytes({2, 3}));
  EXPECT_EQ(TensorBytes(tensors[1]), Float32Bytes({12, 13}));
  WriteDump("act_dumps.npz", {{.name = "fc.fwd.npy", .data = "no array"},
                              {.name = "fc.bwd.npy", .data = Stack(2, 20)}});
  ExpectRefused({"tensor 'fc.fwd'", "is not a .npy file"});
}

TEST_F(Dumps, NoteForwardArraysOfOtherTypesAndGaps) {
  WriteThreeDumps();
  const TraceReader reader = Open();
  std::string notes;
  for (const std::string& note : reader.notes()) notes += note + "\n";
  EXPECT_NE(notes.find("left out 2 arrays of forward activations (.fwd) that are not"), notes.npos)
      << notes;
  EXPECT_NE(notes.find("dumps before 'act_dumps_2.npz' are missing"), notes.npos) << notes;
}

TEST_F(Dumps, GivenAsFilesAreReadInNumericOrder) {
  WriteThreeDumps();
  const TraceReader reader =
      OpenTrace({Path("act_dumps_10.npz"), Path("act_dumps_2.npz"), Path("act_dumps.npz")});
  EXPECT_EQ(TensorBytes(reader.Load(3).recordings[0].tensors[0]), Float32Bytes({30, 31}));
}

TEST_F(Dumps, KnowRolesByTheKey) {
  WriteDump("act_dumps.npz", {{.name = "m.call2.bwd.weight.npy", .data = Stack(1, 0)},
                              {.name = "m.call2.bwd.npy", .data = Stack(1, 0)},
                              {.name = "m.bwd.0.1.npy", .data = Stack(1, 0)},
                              {.name = "fwd.bwd.bias.npy", .data = Stack(1, 0)},
                              {.name = "x.act_grad.npy", .data = Stack(1, 0)},
                              {.name = "x.grad.npy", .data = Stack(1, 0)}});
  const TraceStep step = Open().Load(0);
  std::string roles;
  for (const TraceTensor& tensor : step.recordings[0].tensors) {
    roles += std::string(NameOf(tensor.info->role)) + " ";
  }
  EXPECT_EQ(roles, "grad act_grad act_grad grad act_grad grad ");
}

TEST_F(Dumps, RejectArraysThatDoNotStack) {
  WriteDump("act_dumps.npz", {{.name = "a.bwd.npy", .data = Stack(2, 0)},
                              {.name = "b.bwd.npy", .data = Stack(3, 0)}});
  ExpectRefused({"tensor 'b.bwd'", "number of steps", "expected 2", "got 3"});
  WriteDump("act_dumps.npz", {{.name = "a.bwd.npy", .data = Stack(2, 0, true)}});
  ExpectRefused({"tensor 'a.bwd'", "Fortran order"});
  const std::string scalar = MakeNpyHeader("<f4", {}) + Float32Bytes({1});
  WriteDump("act_dumps.npz", {{.name = "a.bwd.npy", .data = scalar}});
  ExpectRefused({"tensor 'a.bwd'", "no axis of steps"});
  WriteDump("act_dumps.npz", {{.name = "a.fwd.npy", .data = scalar}});
  ExpectRefused({"tensor 'a.fwd'", "no axis of steps"});
  WriteDump("act_dumps.npz", {{.name = "a.fwd.npy", .data = Masks()}});
  ExpectRefused({"act_dumps.npz", "holds no values of a training"});
  WriteDump("act_dumps.npz", {{.name = "a.bwd.npy", .data = Stack(0, 0)}});
  ExpectRefused({"act_dumps.npz", "no steps"});
  const std::array<uint64_t, 2> many = {uint64_t{1} << 40, 0};
  WriteDump("act_dumps.npz", {{.name = "a.bwd.npy", .data = MakeNpyHeader("<f4", many)}});
  ExpectRefused({"tensor 'a.bwd'", "too many steps"});
}

TEST_F(Dumps, RejectMoreStepsThanTheFileHasBytes) {
  const std::array<uint64_t, 2> empty_slices = {1'000'000, 0};
  WriteDump("act_dumps.npz", {{.name = "a.bwd.npy", .data = MakeNpyHeader("<f4", empty_slices)}});
  ExpectRefused({"tensor 'a.bwd'", "too many steps for a file of this size", "got 1000000"});
}

TEST_F(Dumps, StayOpenBetweenTheirSteps) {
  const std::string path = WriteDump("act_dumps.npz", {{.name = "a.bwd.npy", .data = Stack(2, 0)}});
  const TraceReader reader = Open();
  EXPECT_EQ(TensorBytes(reader.Load(0).recordings[0].tensors[0]), Float32Bytes({0, 1}));
  std::filesystem::remove(path);
  EXPECT_EQ(TensorBytes(reader.Load(1).recordings[0].tensors[0]), Float32Bytes({2, 3}));
}

// What was decompressed for a step is not decompressed again for the next.
TEST_F(Dumps, ReadOnInDeflatedArrays) {
  constexpr uint64_t kElements = 50'000;
  const std::array<uint64_t, 2> shape = {2, kElements};
  const std::string data(8 * kElements, 'x');
  const ZipMember member = Deflated("a.bwd.npy", MakeNpyHeader("<f4", shape) + data);
  const std::string path = WriteDump("act_dumps.npz", {member});
  const TraceReader reader = Open();
  EXPECT_EQ(TensorBytes(reader.Load(0).recordings[0].tensors[0]), data.substr(4 * kElements));
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(30 + member.name.size())) << std::string(1000, '\xFF');
  file.close();
  EXPECT_EQ(TensorBytes(reader.Load(1).recordings[0].tensors[0]), data.substr(4 * kElements));
}

TEST_F(Dumps, AreReadInAnyOrderOfSteps) {
  WriteDump("act_dumps.npz",
            {{.name = "a.bwd.npy", .data = Stack(3, 0)}, Deflated("b.bwd.npy", Stack(3, 10))});
  const TraceReader reader = Open();
  for (const size_t i : {2u, 0u, 1u, 1u, 2u, 2u, 0u, 2u}) {
    const TraceStep step = reader.Load(i);
    const float first = 2 * static_cast<float>(i);
    EXPECT_EQ(TensorBytes(step.recordings[0].tensors[0]), Float32Bytes({first, first + 1}));
    EXPECT_EQ(TensorBytes(step.recordings[0].tensors[1], 3),
              Float32Bytes({first + 10, first + 11}));
  }
}

TEST_F(Dumps, AreReadByThreadsAtOnce) {
  constexpr uint64_t kSteps = 100;
  WriteDump("act_dumps.npz", {{.name = "a.bwd.npy", .data = Stack(kSteps, 0)},
                              Deflated("b.bwd.npy", Stack(kSteps, 0))});
  const TraceReader reader = Open();
  const auto read_all = [&] {
    for (size_t i = 0; i < kSteps; ++i) {
      const TraceStep step = reader.Load(i);
      const float first = 2 * static_cast<float>(i);
      for (const TraceTensor& tensor : step.recordings[0].tensors) {
        EXPECT_EQ(TensorBytes(tensor, 5), Float32Bytes({first, first + 1}));
      }
    }
  };
  std::thread other(read_all);
  read_all();
  other.join();
}

TEST_F(Dumps, FindAWrongChecksumAtTheLastStep) {
  const std::array<uint64_t, 2> shape = {3, 8192};
  const std::string data = MakeNpyHeader("<f4", shape) + std::string(3 * 4 * 8192, 'x');
  WriteDump("act_dumps.npz", {{.name = "a.bwd.npy", .data = data, .crc = 1}});
  for (const size_t first : {0u, 1u, 2u}) {  // also where steps before it were not read
    const TraceReader reader = Open();
    for (size_t i = first; i < 2; ++i) {
      EXPECT_NO_THROW(TensorBytes(reader.Load(i).recordings[0].tensors[0]));
    }
    ExpectInputError([&] { TensorBytes(reader.Load(2).recordings[0].tensors[0]); }, {"CRC"});
  }
}

}  // namespace
}  // namespace dlsim
