// SPDX-License-Identifier: Apache-2.0
// What dlsim diff prints in a terminal, and what it refuses (docs/diff.md).
#include <gtest/gtest.h>

#include "tests/support/changed_trace.h"
#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"

namespace dlsim {
namespace {

TEST(DiffReport, ReportsFitATerminal) {
  const TempDir dir;
  WriteChanged(kSingle, dir, [](int64_t, const std::string&, std::vector<float>& values) {
    for (float& value : values) value *= 1.01f;
  });
  const std::string report =
      Succeed({"diff", kSingle, dir.path(), "--details", "--by-layer", "--top", "3"});
  for (const std::string& line : Lines(report)) {
    if (line.starts_with("A: ") || line.starts_with("B: ")) continue;  // names of files
    EXPECT_LE(line.size(), 80u) << line;
  }
  EXPECT_NE(report.find("\n  and 9 more: --top 12\n"), std::string::npos);
  EXPECT_EQ(Succeed({"diff", kSingle, dir.path(), "--quiet"}), "");
}

TEST(DiffReport, ALayerHasTheDifferenceOfItsWorstTensor) {
  const TempDir a, b;
  const BuiltTensor ln = FloatTensor("ln.bias.grad", {1});
  a.Write("step-4.safetensors",
          BuildSafetensors({FloatTensor("fc.weight.grad", {1}), FloatTensor("fc.bias.grad", {1}),
                            FloatTensor("fc.act_grad", {1}), ln}));
  b.Write("step-4.safetensors",
          BuildSafetensors({FloatTensor("fc.weight.grad", {1}), FloatTensor("fc.bias.grad", {3}),
                            FloatTensor("fc.act_grad", {1.5}), ln}));
  const std::string report = Succeed({"diff", a.path(), b.path(), "--by-layer"});
  EXPECT_TRUE(
      report.ends_with("\n"
                       "  layer  differs  step  tensors above\n"
                       "  fc           2     4            2/3\n"
                       "  ln           0     4            0/1\n"))
      << report;
}

TEST(DiffReport, ANoteOfBothRunsStandsOnce) {
  const TempDir a, b, c;
  for (const TempDir* trace : {&a, &b, &c}) {
    for (const char* step : {"1", "2", "4"}) {
      if (trace == &c && step[0] == '2') continue;
      trace->Write("step-" + std::string(step) + ".safetensors",
                   BuildSafetensors({FloatTensor("w.grad", {1})}));
    }
  }
  const std::string gap = " 1 step is missing (1 gap)";
  const std::string alike = Succeed({"diff", a.path(), b.path()});
  EXPECT_NE(alike.find("note: A and B:" + gap), std::string::npos) << alike;
  EXPECT_EQ(alike.find("note:", alike.find("note:") + 1), std::string::npos) << alike;
  const std::string other = Succeed({"diff", a.path(), c.path()});
  EXPECT_NE(other.find("note: A:" + gap), std::string::npos) << other;
  EXPECT_NE(other.find("note: B: 2 steps are missing (1 gap)"), std::string::npos) << other;
}

TEST(DiffReport, LongNamesKeepTheirEndsAndTheirLetters) {
  const TempDir a, b;
  std::string name = "b";
  for (int i = 0; i < 40; ++i) name += "\xC3\xBC";  // an umlaut of two bytes
  name += "e.grad";
  a.Write("step-1.safetensors", BuildSafetensors({FloatTensor(name, {1})}));
  b.Write("step-1.safetensors", BuildSafetensors({FloatTensor(name, {2})}));
  const std::string report = Succeed({"diff", a.path(), b.path(), "--details", "--by-layer"});
  size_t shortened = 0;
  for (const std::string& line : Lines(report)) {
    const size_t gap = line.find("..");
    if (gap == std::string::npos) continue;
    ++shortened;
    EXPECT_NE(line[gap - 1], '\xC3') << line;  // half a letter
    EXPECT_NE(line[gap + 2], '\xBC') << line;
  }
  EXPECT_EQ(shortened, 3u) << report;  // among the tensors, the layers and the steps
}

TEST(DiffCommand, RefusesWhatCannotBeCompared) {
  const TempDir one, other;
  one.Write("step-1.safetensors", BuildSafetensors({FloatTensor("w.grad", {1})}));
  other.Write("step-2.safetensors", BuildSafetensors({FloatTensor("v.grad", {1})}));
  ExpectFailure({"diff", one.path(), other.path()}, 4, {"no step in common", "--align index"});
  ExpectFailure({"diff", one.path(), other.path(), "--align", "index"}, 4, {"no tensor in common"});
  ExpectFailure({"diff", one.path(), one.path(), "--tensors", "x*"}, 3, {"--tensors 'x*'"});
  ExpectFailure({"diff", one.path(), one.path(), "--threshold", "-1"}, 2, {"--threshold"});
  ExpectFailure({"diff", one.path(), one.path(), "--expect", "max_cosine>0"}, 2,
                {"unknown figure", "min_cosine"});
  ExpectFailure({"diff", one.path(), one.path(), "--expect", "a/b:steps>0"}, 2, {"no runs"});
  ExpectFailure({"diff", one.path()}, 2, {"B"});
  ExpectFailure({"diff", one.path(), one.path() + "/none"}, 3, {"none"});
  const std::string file = one.path() + "/step-1.safetensors";
  ExpectFailure({"diff", one.path(), file, "--json", file}, 2, {"--json"});
}

}  // namespace
}  // namespace dlsim
