// SPDX-License-Identifier: Apache-2.0
#include "trace/dumps.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "tests/trace_test_util.h"
#include "tests/zip_builder.h"

namespace dlsim {
namespace {

class Dumps : public TraceDirectoryTest {
 protected:
  // Returns an array of `steps` x 2 whose values count up from `first`.
  static std::string Stack(uint64_t steps, float first, bool fortran = false) {
    const std::array<uint64_t, 2> shape = {steps, 2};
    std::string bytes = MakeNpyHeader(NpyType::kF32, shape, fortran);
    for (uint64_t i = 0; i < 2 * steps; ++i) bytes += Float32Bytes({first + static_cast<float>(i)});
    return bytes;
  }
  std::string WriteDump(const std::string& name, const std::vector<ZipMember>& members) {
    return dir_.Write(name, ZipBytes(members));
  }
  void WriteThreeDumps() {
    WriteDump("act_dumps.npz", {{.name = "fc.fwd.npy", .data = "forward data are not read"},
                                {.name = "fc.bwd.0.npy", .data = Stack(2, 0)},
                                Deflated("fc.bwd.weight.npy", Stack(2, 10))});
    WriteDump("act_dumps_2.npz", {{.name = "fc.bwd.npy", .data = Stack(1, 20)}});
    WriteDump("act_dumps_10.npz",
              {{.name = "fc.fwd.0.npy", .data = ""}, {.name = "fc.bwd.npy", .data = Stack(1, 30)}});
  }
};

TEST_F(Dumps, GiveOneStepPerSlice) {
  WriteThreeDumps();
  const TraceReader reader = Open();
  EXPECT_EQ(StepNumbers(reader), (std::vector<int64_t>{0, 1, 2, 3}));
  const TraceStep step = reader.Load(1);
  ASSERT_EQ(step.recordings[0].tensors.size(), 2u);
  const TraceTensor& input = step.recordings[0].tensors[0];
  const TraceTensor& weight = step.recordings[0].tensors[1];
  EXPECT_EQ(input.role, Role::kActGrad);
  EXPECT_EQ(weight.role, Role::kGrad);
  EXPECT_EQ(weight.shape, std::vector<uint64_t>{2});
  EXPECT_EQ(TensorBytes(input), Float32Bytes({2, 3}));
  EXPECT_EQ(TensorBytes(weight), Float32Bytes({12, 13}));
  EXPECT_EQ(TensorBytes(reader.Load(0).recordings[0].tensors[0]), Float32Bytes({0, 1}));
  EXPECT_EQ(TensorBytes(reader.Load(2).recordings[0].tensors[0]), Float32Bytes({20, 21}));
  EXPECT_EQ(TensorBytes(reader.Load(3).recordings[0].tensors[0]), Float32Bytes({30, 31}));
}

TEST_F(Dumps, NoteForwardActivationsAndGaps) {
  WriteThreeDumps();
  const TraceReader reader = Open();
  std::string notes;
  for (const std::string& note : reader.notes()) notes += note + "\n";
  EXPECT_NE(notes.find("left out 2 arrays of forward activations"), notes.npos) << notes;
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
    roles += std::string(RoleName(tensor.role)) + " ";
  }
  EXPECT_EQ(roles, "grad act_grad act_grad grad act_grad grad ");
}

TEST_F(Dumps, RejectArraysThatDoNotStack) {
  WriteDump("act_dumps.npz", {{.name = "a.bwd.npy", .data = Stack(2, 0)},
                              {.name = "b.bwd.npy", .data = Stack(3, 0)}});
  ExpectRefused({"tensor 'b.bwd'", "number of steps", "expected 2", "got 3"});
  WriteDump("act_dumps.npz", {{.name = "a.bwd.npy", .data = Stack(2, 0, true)}});
  ExpectRefused({"tensor 'a.bwd'", "Fortran order"});
  const std::string scalar = MakeNpyHeader(NpyType::kF32, {}) + Float32Bytes({1});
  WriteDump("act_dumps.npz", {{.name = "a.bwd.npy", .data = scalar}});
  ExpectRefused({"tensor 'a.bwd'", "no axis of steps"});
  WriteDump("act_dumps.npz", {{.name = "a.fwd.npy", .data = scalar}});
  ExpectRefused({"act_dumps.npz", "no gradients"});
  WriteDump("act_dumps.npz", {{.name = "a.bwd.npy", .data = Stack(0, 0)}});
  ExpectRefused({"act_dumps.npz", "no steps"});
  const std::array<uint64_t, 2> many = {uint64_t{1} << 40, 0};
  WriteDump("act_dumps.npz", {{.name = "a.bwd.npy", .data = MakeNpyHeader(NpyType::kF32, many)}});
  ExpectRefused({"tensor 'a.bwd'", "too many steps"});
}

TEST_F(Dumps, FindAWrongChecksumAtTheLastStep) {
  WriteDump("act_dumps.npz", {{.name = "a.bwd.npy", .data = Stack(2, 0), .crc = 1}});
  const TraceReader reader = Open();
  EXPECT_NO_THROW(TensorBytes(reader.Load(0).recordings[0].tensors[0]));
  ExpectInputError([&] { TensorBytes(reader.Load(1).recordings[0].tensors[0]); }, {"CRC"});
}

}  // namespace
}  // namespace dlsim
