// SPDX-License-Identifier: Apache-2.0
// --device: what it takes, what it refuses, and that a device that is not there is never replaced.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "sim/base/parse.h"
#include "src/trace/npy.h"
#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"

namespace dlsim::sim {
namespace {

using Kind = DeviceChoice::Kind;

// Every command that takes the option, on small inputs; results go to files that begin with `out`.
class DeviceOption : public testing::Test {
 protected:
  DeviceOption() {
    const std::vector<uint64_t> shape = {2};
    dir_.Write("in.npy", MakeNpyHeader("<f4", shape, false) + Float32Bytes({1.0f, -0.3333333f}));
    Succeed({"convert", "--to", "cb16", Path("in.npy"), Path("codes.npy")});
    Succeed({"profile", kSingle, "-o", Path("in.profile"), "--quiet"});
  }

  std::vector<Arguments> Commands() const {
    return {{"replay", kSingle, "--json", Path("out.json"), "--csv", Path("out.csv")},
            {"replay", Path("in.profile"), "--format", "fp16", "--json", Path("out.json")},
            {"sweep", kSingle, "--policy", "torch", "--vary", "init_scale=1,2", "--json",
             Path("out.json")},
            {"tune", kSingle, "--format", "fp16", "--json", Path("out.json")},
            {"profile", kSingle, "-o", Path("out.profile"), "--restart"},
            {"convert", "--to", "fp16", Path("in.npy"), Path("out.npy")},
            {"convert", "--from", "cb16", Path("codes.npy"), Path("out.npy")}};
  }

  static Arguments With(Arguments arguments, const std::string& device) {
    arguments.insert(arguments.end(), {"--device", device});
    return arguments;
  }

  std::vector<std::string> Outputs() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("out")) names.push_back(name);
    }
    return names;
  }

  std::string Path(const std::string& name) const { return dir_.path() + "/" + name; }

  TempDir dir_;
};

TEST_F(DeviceOption, MeansWhatItSays) {
  EXPECT_EQ(ParseDevice("auto").kind, Kind::kAuto);
  EXPECT_EQ(ParseDevice("cpu").kind, Kind::kCpu);
  EXPECT_EQ(ParseDevice("cuda").kind, Kind::kCuda);
  EXPECT_EQ(ParseDevice("cuda").index, 0);
  EXPECT_EQ(ParseDevice("cuda:12").kind, Kind::kCuda);
  EXPECT_EQ(ParseDevice("cuda:12").index, 12);
}

TEST_F(DeviceOption, OtherTextsAreWrongUsage) {
  for (const char* text : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda: 1", "cuda:+1",
                           "cuda:99999999999", "CUDA", "cuda0", "auto:0", "cpu:1", ""}) {
    ExpectFailure(With(Commands()[0], text), 2,
                  {"--device: unknown device, expected auto, cpu, cuda or cuda:N", Quoted(text)});
  }
  for (const Arguments& command : Commands()) ExpectFailure(With(command, "gpu"), 2, {"--device"});
  EXPECT_EQ(Outputs(), std::vector<std::string>{});
}

TEST_F(DeviceOption, ADeviceThatIsNotThereIsExitCode3AndNoOutput) {
  for (const Arguments& command : Commands()) {
    ExpectFailure(With(command, "cuda:4095"), 3, {"--device", "cuda:4095"});
    Arguments quiet = With(command, "cuda:4095");
    if (command.front() == "convert") continue;
    quiet.emplace_back("--quiet");
    ExpectFailure(quiet, 3, {"--device", "cuda:4095"});
  }
  EXPECT_EQ(Outputs(), std::vector<std::string>{});
}

TEST_F(DeviceOption, AutoTakesTheCpuForSmallInputsAndSaysNothing) {
  for (const Arguments& command : Commands()) {
    const std::string on_cpu = Succeed(With(command, "cpu"));
    EXPECT_EQ(Succeed(With(command, "auto")), on_cpu) << command.front();
    EXPECT_EQ(Succeed(command), on_cpu) << command.front();
  }
}

TEST_F(DeviceOption, IsExplainedByEveryCommandThatTakesIt) {
  for (const char* command : {"replay", "sweep", "tune", "profile", "convert"}) {
    const std::string help = Succeed({command, "--help"});
    EXPECT_NE(help.find("--device auto|cpu|cuda[:N]"), help.npos) << command;
    EXPECT_NE(help.find("1 GiB"), help.npos) << command;
  }
}

#ifndef DLSIM_WITH_CUDA
TEST_F(DeviceOption, ABuildWithoutCudaSaysSo) {
  for (const Arguments& command : Commands()) {
    ExpectFailure(With(command, "cuda"), 3,
                  {"built without CUDA", "-DDLSIM_ENABLE_CUDA=ON", "--device cpu", "cuda:0"});
  }
}
#endif

}  // namespace
}  // namespace dlsim::sim
