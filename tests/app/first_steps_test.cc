// SPDX-License-Identifier: Apache-2.0
// What a new user types first.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

// Names of other software are answered with what there is, and another width is no slip.
TEST(FirstSteps, AFormatOfOtherSoftwareGetsItsReason) {
  const std::vector<std::pair<const char*, const char*>> hints = {
      {"fp8", "(did you mean 'fp8-e4m3' or 'fp8-e5m2'?)"},
      {"float8", "(did you mean 'fp8-e4m3' or 'fp8-e5m2'?)"},
      {"FP8_E4M3", "(did you mean 'fp8-e4m3'?)"},
      {"e5m2fn", "(did you mean 'fp8-e5m2'?)"},
      {"float8_e4m3fnuz", "(the fnuz encodings are not supported)"},
      {"mxfp8", "(block scales are not supported)"},
      {"MXFP4", "(block scales are not supported)"},
      {"nvfp4", "(block scales are not supported)"},
      {"mxint8", "(block scales are not supported)"},
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
    ExpectFailure({"replay", kSingle, "--format", name}, 2, {"format: unknown name", hint});
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

}  // namespace
}  // namespace dlsim
