// SPDX-License-Identifier: Apache-2.0
// What a new user types first: no command, help, the version; and --threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

TEST(FirstSteps, WithoutACommandItsHelpComesBeforeTheError) {
  const CommandResult result = RunCommand({});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("no command, expected one of r"), std::string::npos) << result.err;
  EXPECT_EQ(Lines(result.err).size(), 1u);
  EXPECT_EQ(result.out, Succeed({"--help"}));
}

TEST(FirstSteps, HelpIsACommandToo) {
  EXPECT_EQ(Succeed({"help"}), Succeed({"--help"}));
  EXPECT_EQ(Succeed({"help", "replay"}), Succeed({"replay", "--help"}));
  EXPECT_EQ(Succeed({"help", "help"}), Succeed({"help", "-h"}));
  EXPECT_NE(Succeed({"--help"}).find("\n  help "), std::string::npos);
  ExpectFailure({"help", "repaly"}, 2, {"unknown command (did you mean 'replay'?)", "'repaly'"});
}

// A tensor is so large that several threads have work.
TEST(FirstSteps, TheNumberOfThreadsIsNotSeen) {
  const TempDir dir;
  std::vector<float> values(1'000'001);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(static_cast<float>(i)) * std::ldexp(1.0f, static_cast<int>(i % 40) - 30);
  }
  dir.Write("step-1.safetensors", BuildSafetensors({FloatTensor("w.grad", values)}));
  std::ranges::reverse(values);
  dir.Write("step-2.safetensors", BuildSafetensors({FloatTensor("w.grad", values)}));
  const std::string& trace = dir.path();
  for (const Arguments& command : {Arguments{"replay", trace, "--policy", "torch", "--json", "-"},
                                   {"tune", trace, "--json", "-"},
                                   {"sweep", trace, "--json", "-"},
                                   {"diff", trace, trace, "--json", "-"},
                                   {"replay", trace, "--summaries", "-"}}) {
    const auto with = [&](const std::string& threads) {
      Arguments arguments = command;
      arguments.insert(arguments.end(), {"--threads", threads});
      return Succeed(arguments);
    };
    const std::string one = with("1");
    EXPECT_EQ(Succeed(command), one) << command[0];
    EXPECT_EQ(with("3"), one) << command[0];
    EXPECT_EQ(with("64"), one) << command[0];
  }
  for (const char* const command : {"replay", "tune", "sweep"}) {
    const Arguments asked = {command, trace, "--json", "-"};
    Arguments little = asked;
    little.insert(little.end(), {"--memory", "1"});
    EXPECT_EQ(Succeed(little), Succeed(asked)) << command;
  }
  ExpectFailure({"replay", trace, "--memory", "0"}, 2, {"--memory: too small", "1 or more"});
  ExpectFailure({"tune", trace, "--memory", "2^31"}, 2, {"--memory: too large", "1073741824 MiB"});
  ExpectFailure({"replay", trace, "--threads", "0"}, 2, {"--threads: too small", "1 or more"});
  ExpectFailure({"replay", trace, "--threads", "-2"}, 2, {"--threads: too small", "'-2'"});
  ExpectFailure({"replay", trace, "--threads", "5000"}, 2, {"--threads: too large", "4096"});
  ExpectFailure({"replay", trace, "--threads", "all"}, 2, {"--threads: not a number", "'all'"});
}

// Names of other software are answered with what there is, and another width is no slip.
TEST(FirstSteps, AFormatOfOtherSoftwareGetsItsReason) {
  const std::vector<std::pair<const char*, const char*>> hints = {
      {"fp8", "(did you mean 'fp8-e4m3' or 'fp8-e5m2'?)"},
      {"float8", "(did you mean 'fp8-e4m3' or 'fp8-e5m2'?)"},
      {"FP8_E4M3", "(did you mean 'fp8-e4m3'?)"},
      {"e5m2fn", "(did you mean 'fp8-e5m2'?)"},
      {"float8_e4m3fnuz", "(the fnuz encodings are not supported)"},
      {"mxfp8", "(formats with scales of their own are for replay, profile and dlsim.arrays)"},
      {"MXFP4", "(formats with scales of their own are for replay, profile and dlsim.arrays)"},
      {"nvfp4", "(formats with scales of their own are for replay, profile and dlsim.arrays)"},
      {"mxint8", "(these block scales are not supported)"},
      {"fp32", "(float32 is what each format is compared with)"},
      {"int8", "(integers are not supported)"},
      {"tf23", "(did you mean 'tf32'?)"},
      {"bfloat61", "(did you mean 'bfloat16'?)"},
      {"cb61", "(did you mean 'cb16'?)"},
      {"fp4", "unknown name, expected"},
      {"float4", "unknown name, expected"},
      {"fp6", "unknown name, expected"},
      {"fp128", "unknown name, expected"}};
  for (const auto& [name, hint] : hints) {
    ExpectFailure({"tune", kSingle, "--format", name}, 2, {"format: unknown name", hint});
  }
}

TEST(FirstSteps, TheTracesWithinADirectoryAreNamed) {
  const TempDir dir;
  const auto add = [&](const std::string& name) {
    std::filesystem::create_directory(dir.path() + "/" + name);
    dir.Write(name + "/step-0.safetensors", BuildSafetensors({FloatTensor("w.grad", {1})}));
  };
  std::filesystem::create_directory(dir.path() + "/empty");
  ExpectFailure({"replay", dir.path()}, 3, {"no step found, expected a directory"});
  add("b");
  ExpectFailure({"replay", dir.path()}, 3,
                {"no step found (", "/b looks like a trace or profile)"});
  dir.Write("a.dlprof", "");
  ExpectFailure({"info", dir.path()}, 3, {"/a.dlprof and ", "/b look like traces or profiles)"});
  add("c");
  ExpectFailure({"tune", dir.path()}, 3, {"/a.dlprof, ", "/b and 1 more look like traces"});
}

TEST(FirstSteps, AnOptionWithoutItsValueSaysWhichOneItTakes) {
  ExpectFailure({"replay", kSingle, "--json"}, 2, {"--json: no value, expected FILE (see "});
  ExpectFailure({"profile", kSingle, "-o"}, 2, {"--output: no value, expected FILE (see "});
  ExpectFailure({"sweep", kSingle, "--vary"}, 2, {"--vary: no value, expected KEY=VALUES (see "});
  ExpectFailure({"convert", "a.npy", "b.npy", "--to"}, 2, {"--to: no value, expected FORMAT"});
}

TEST(FirstSteps, HelpHasGroupsAndSaysWhatIsRequired) {
  const std::string help = Succeed({"help", "replay"});
  size_t last = 0;
  for (const char* group : {"Input:", "What to try:", "Emulation:", "Computation:", "Output:"}) {
    const size_t at = help.find(std::string("\n") + group + "\n");
    EXPECT_NE(at, std::string::npos) << group;
    EXPECT_GT(at, last) << group;
    last = at;
  }
  EXPECT_NE(help.find("--heat-map[=BINS] "), std::string::npos) << help;
  EXPECT_NE(Succeed({"help", "profile"}).find("-o,--output FILE (required) "), std::string::npos);
  EXPECT_NE(Succeed({"help", "merge"}).find("-o,--output FILE (required) "), std::string::npos);
  EXPECT_NE(Succeed({"help", "join-shards"}).find("PATH (required)"), std::string::npos);
  EXPECT_NE(Succeed({"help", "explain"}).find("[OPTIONS] LOG...\n"), std::string::npos);
}

TEST(FirstSteps, PrintsItsVersion) {
  const std::string version = Succeed({"--version"});
  EXPECT_TRUE(version.starts_with("dlsim ")) << version;
  EXPECT_EQ(Lines(version).size(), 1u);
  for (const char* feature : {"SIMD ", "CUDA", "OPENMP"}) {
    EXPECT_NE(version.find(feature), std::string::npos) << version;
  }
  EXPECT_EQ(Succeed({"-V"}), version);
  EXPECT_EQ(Succeed({"-v"}), version);
}

}  // namespace
}  // namespace dlsim
