// SPDX-License-Identifier: Apache-2.0
// The command with an emulated CUDA device: results are the CPU's byte for byte, and what goes
// wrong is one line.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/trace/npy.h"
#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"

namespace dlsim {
namespace {

// A variable of the environment that emulated_machine.cc reads, for a scope.
class Emulated {
 public:
  Emulated(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Emulated() { unsetenv(name_); }
  Emulated(const Emulated&) = delete;
  Emulated& operator=(const Emulated&) = delete;

 private:
  const char* name_;
};

class DeviceCommand : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return dir_.path() + "/" + name; }

  // Writes 70,000 floats of all magnitudes: more than one block, and not a multiple of a warp.
  std::string WriteFloats() const {
    const std::vector<uint64_t> shape = {7, 10000};
    std::string bytes = MakeNpyHeader(NpyType::kF32, shape, false);
    for (int i = 0; i < 70000; ++i) {
      const float value = std::ldexp(1.0f + static_cast<float>(i % 977) / 977.0f, i % 150 - 80);
      bytes += Float32Bytes({i % 3 == 0 ? -value : value});
    }
    return dir_.Write("in.npy", bytes);
  }

  // Runs the command on a device and returns what it printed and wrote to `files`.
  std::vector<std::string> Run(Arguments arguments, const std::string& device,
                               const std::vector<std::string>& files) {
    arguments.insert(arguments.end(), {"--device", device});
    const CommandResult result = RunCommand(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    if (device != "cpu" && arguments.front() != "convert") {
      EXPECT_NE(result.err.find("note: computes on " + device + " (Emulated device)\n"),
                result.err.npos)
          << result.err;
    }
    std::vector<std::string> results = {result.out};
    for (const std::string& file : files) results.push_back(ReadBytes(Path(file)));
    return results;
  }

  void ExpectSame(const Arguments& arguments, const std::vector<std::string>& files) {
    const auto on_cpu = Run(arguments, "cpu", files);
    for (const std::string& bytes : on_cpu) EXPECT_FALSE(bytes.empty() && files.empty());
    EXPECT_EQ(Run(arguments, "cuda:0", files), on_cpu) << arguments[1];
  }

  // Expects one line and exit code 3, and that nothing is left behind.
  void ExpectRefused(Arguments arguments, const Arguments& words) {
    const auto before = Files();
    ExpectFailure(arguments, 3, words);
    EXPECT_EQ(Files(), before);
  }

  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  TempDir dir_;
};

TEST_F(DeviceCommand, ReplaysToTheSameBytes) {
  for (const std::string& trace : {kSingle, kAccumulated}) {
    ExpectSame({"replay", trace, "--json", Path("out.json"), "--csv", Path("out.csv")},
               {"out.json", "out.csv"});
  }
  ExpectSame({"replay", kAccumulated, "--accumulate", "sum-first", "--rounding", "sr", "--seed",
              "7", "--json", Path("out.json")},
             {"out.json"});
  ExpectSame({"replay", kSingle, "--policy", "torch", "--max-gradient-norm", "1", "--json",
              Path("out.json")},
             {"out.json"});
}

TEST_F(DeviceCommand, ProfilesToTheSameBytes) {
  for (const std::string& trace : {kSingle, kAccumulated}) {
    ExpectSame({"profile", trace, "-o", Path("out.dlprof"), "--json", Path("out.json")},
               {"out.dlprof", "out.json"});
  }
}

// On few tensors: both measure many times.
TEST_F(DeviceCommand, SweepsAndTunesToTheSameBytes) {
  ExpectSame({"sweep", kSingle, "--tensors", "ln_f*", "--policy", "torch", "--vary",
              "init_scale=2^0..2^4", "--json", Path("out.json")},
             {"out.json"});
  ExpectSame(
      {"tune", kSingle, "--tensors", "ln_f*", "--format", "fp16", "--json", Path("out.json")},
      {"out.json"});
}

TEST_F(DeviceCommand, ConvertsToTheSameBytes) {
  const std::string in = WriteFloats();
  const std::vector<std::pair<std::string, std::string>> modes = {
      {"fp16", "rne"}, {"bf16", "rtz"}, {"cb16", "sr"}, {"tf32", "ru"}, {"e5m2", "rna"}};
  for (const auto& [format, rounding] : modes) {
    ExpectSame({"convert", "--to", format, "--rounding", rounding, "--scale", "2^3", in,
                Path("codes.npy")},
               {"codes.npy"});
    ExpectSame({"convert", "--from", format, "--scale", "3", Path("codes.npy"), Path("back.npy")},
               {"back.npy"});
  }
}

TEST_F(DeviceCommand, TakesTheDeviceThatIsNamed) {
  const Emulated devices("EMULATED_DEVICES", "2");
  const Arguments replay = {"replay", kSingle, "--tensors", "ln_f*", "--json", Path("out.json")};
  EXPECT_EQ(Run(replay, "cuda:1", {"out.json"}), Run(replay, "cpu", {"out.json"}));
  ExpectRefused({"replay", kSingle, "--json", Path("no.json"), "--device", "cuda:2"},
                {"--device: no such device, expected cuda:0 to cuda:1, got cuda:2"});
}

#ifdef DLSIM_EMULATED_BENCH
TEST_F(DeviceCommand, BenchTimesTheKernelsOfTheDevice) {
  const CommandResult run =
      RunProgram(DLSIM_EMULATED_BENCH,
                 {"--device=cuda", "--dram-mib=1", "--benchmark_min_time=0.0001",
                  "--benchmark_filter=Copy|cb16/(rne|-)|ladder", "--benchmark_format=json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto result = nlohmann::json::parse(run.out);
  EXPECT_EQ(result["context"]["gpu"], "Emulated device");
  std::set<std::string> names;
  for (const auto& entry : result["benchmarks"]) {
    names.insert(entry["name"]);
    EXPECT_GT(entry["real_time"], 0) << entry["name"];
    EXPECT_GT(entry["bytes_per_second"], 0) << entry["name"];
  }
  std::set<std::string> expected;
  for (const char* kernel :
       {"Copy/-/-", "Encode/cb16/rne", "Decode/cb16/-", "Measure/cb16/rne", "Histogram/ladder/-"}) {
    for (const char* data : {"normal", "grad"}) {
      expected.insert(std::string("gpu/") + kernel + "/DRAM/" + data + "/manual_time");
    }
  }
  EXPECT_EQ(names, expected);
}
#endif

TEST_F(DeviceCommand, QuietMeansNoNote) {
  const CommandResult result =
      RunCommand({"replay", kSingle, "--tensors", "ln_f*", "--quiet", "--device", "cuda"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out + result.err, "");
}

TEST_F(DeviceCommand, AProfileIsAnsweredByTheCpuWithANote) {
  Succeed({"profile", kSingle, "-o", Path("in.dlprof"), "--quiet"});
  const CommandResult on_gpu = RunCommand({"replay", Path("in.dlprof"), "--device", "cuda"});
  EXPECT_EQ(on_gpu.exit_code, 0);
  EXPECT_EQ(on_gpu.out, Succeed({"replay", Path("in.dlprof")}));
  EXPECT_EQ(on_gpu.err,
            "dlsim replay: note: the CPU answers for a profile, not cuda:0 (Emulated device)\n");
}

TEST_F(DeviceCommand, WithoutADriverCudaFailsAndAutoDoesNot) {
  const Emulated driver("EMULATED_DRIVER", "none");
  const std::string in = WriteFloats();
  for (const Arguments& command : {Arguments{"replay", kSingle, "--json", Path("no.json")},
                                   Arguments{"profile", kSingle, "-o", Path("no.dlprof")},
                                   Arguments{"convert", "--to", "fp16", in, Path("no.npy")}}) {
    Arguments on_cuda = command;
    on_cuda.insert(on_cuda.end(), {"--device", "cuda"});
    ExpectRefused(on_cuda, {"--device: ", "driver", "cuda:0"});
  }
  Succeed({"replay", kSingle, "--device", "auto"});
}

TEST_F(DeviceCommand, TooLittleMemoryIsOneLineAndNoOutput) {
  const Emulated memory("EMULATED_KIB", "16");
  const std::string in = WriteFloats();
  const Arguments words = {"cudaMalloc(", "out of memory"};
  ExpectRefused({"replay", kSingle, "--quiet", "--json", Path("no.json"), "--csv", Path("no.csv"),
                 "--device", "cuda"},
                words);
  ExpectRefused({"convert", "--to", "fp16", in, Path("no.npy"), "--device", "cuda"}, words);
  ExpectFailure({"profile", kSingle, "--quiet", "-o", Path("no.dlprof"), "--device", "cuda"}, 3,
                words);
  EXPECT_FALSE(std::filesystem::exists(Path("no.dlprof")));
}

TEST_F(DeviceCommand, ACallThatFailsIsNamedAndLeavesNoOutput) {
  const std::string in = WriteFloats();
  for (const std::string call :
       {"cudaMalloc:2", "cudaHostAlloc:1", "cudaMemcpyAsync:2", "cudaStreamSynchronize:1"}) {
    const Emulated failing("EMULATED_FAILURE", call.c_str());
    const Arguments words = {call.substr(0, call.find(':'))};
    ExpectRefused({"replay", kSingle, "--quiet", "--json", Path("no.json"), "--device", "cuda"},
                  words);
    ExpectRefused({"convert", "--to", "fp16", in, Path("no.npy"), "--device", "cuda"}, words);
  }
}

}  // namespace
}  // namespace dlsim
