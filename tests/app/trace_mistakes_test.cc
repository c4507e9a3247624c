// SPDX-License-Identifier: Apache-2.0
// What a new user gives for a trace: weights, 16-bit gradients, other types, parts given twice.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

class TraceMistakes : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return dir_.path() + "/" + name; }

  // Expects the text in what info and replay say of a trace.
  void ExpectNote(const std::string& trace, const std::string& text) {
    EXPECT_NE(Flowing(Succeed({"info", trace})).find(text), std::string::npos) << text;
    EXPECT_NE(Flowing(Replay(trace)).find(text), std::string::npos) << Replay(trace);
  }

  static std::string Replay(const std::string& trace) {
    return Succeed({"replay", trace, "--format", "fp16", "--policy", "static", "--details"});
  }

  // Lines are joined: notes are wrapped.
  static std::string Flowing(const std::string& text) {
    std::string flowing;
    for (const std::string& line : Lines(text)) {
      const size_t begin = line.find_first_not_of(' ');
      if (begin != std::string::npos) flowing += line.substr(begin) + " ";
    }
    return flowing;
  }

  TempDir dir_;
};

TEST_F(TraceMistakes, WeightsAreNamedAsSuch) {
  const std::string weights =
      BuildSafetensors({FloatTensor("lm_head.weight", {1, 2}), FloatTensor("lm_head.bias", {1})},
                       {{"format", "pt"}});
  dir_.Write("model.safetensors", weights);
  ExpectNote(Path("model.safetensors"), "looks like the weights of a model, not its gradients");
  const std::string gradients =
      BuildSafetensors({FloatTensor("lm_head.weight.grad", {1, 2})}, {{"format", "pt"}});
  dir_.Write("model.safetensors", gradients);
  EXPECT_EQ(Succeed({"info", Path("model.safetensors")}).find("weights of a model"),
            std::string::npos);
}

TEST_F(TraceMistakes, GradientsIn16BitsMayHaveLostSomething) {
  dir_.Write("a.safetensors",
             BuildSafetensors({{"a.grad", "F16", {2}, "abcd"}, FloatTensor("b.grad", {1})}));
  ExpectNote(Path("a.safetensors"),
             "1 of 2 tensors is recorded in F16: the trace does not show what underflow");
}

TEST_F(TraceMistakes, GapsBetweenStepsAreNoted) {
  for (const char* step : {"0", "1", "5", "7"}) {
    dir_.Write(std::string("step-") + step + ".safetensors",
               BuildSafetensors({FloatTensor("a.grad", {1, 2})}));
  }
  ExpectNote(dir_.path(), "4 steps are missing (2 gaps)");
}

TEST_F(TraceMistakes, AnotherTypeAmongGradientsIsLeftOutByName) {
  dir_.Write("a.safetensors", BuildSafetensors({FloatTensor("a.grad", {1}),
                                                {"step", "I64", {1}, std::string(8, '\1')}}));
  ExpectFailure(
      {"info", Path("a.safetensors")}, 3,
      {"tensor 'step'", "unsupported dtype",
       "expected F32, F64, F16 or BF16, or --tensors with a pattern without it", "got 'I64'"});
  Succeed({"replay", Path("a.safetensors"), "--tensors", "*.grad", "--policy", "static"});
}

TEST_F(TraceMistakes, AProfileIsNotMergedWithItself) {
  for (const char* part : {"1", "2"}) {
    Succeed({"profile", kAccumulated, "-o", Path(part), "--shard", part + std::string("/2")});
  }
  ExpectFailure({"merge", Path("1"), Path("1"), Path("2"), "-o", Path("m")}, 3,
                {"is in", "too", "expected each step in one profile, or --partial"});
  Succeed({"merge", Path("1"), Path("1"), Path("2"), "-o", Path("m"), "--partial"});
  Succeed({"merge", Path("1"), Path("2"), "-o", Path("n")});
  EXPECT_TRUE(ReadBytes(Path("m")) == ReadBytes(Path("n")));
}

TEST_F(TraceMistakes, APickleNamesItsImporter) {
  dir_.Write("x.pt", "PK");
  ExpectFailure({"info", Path("x.pt")}, 3, {"unsupported container .pt", "dlsim import"});
}

}  // namespace
}  // namespace dlsim
