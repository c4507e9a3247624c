// SPDX-License-Identifier: Apache-2.0
// dlsim bench run --commands as users run it: names, limits, what stays behind.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <string>
#include <thread>

#include "tests/support/bench_samples.h"
#include "tests/support/run_command.h"

namespace dlsim::sim {
namespace {

using nlohmann::json;

class BenchCommands : public testing::Test {
 protected:
  // The result of a run on the smallest traces.
  json Run(Arguments arguments) const {
    arguments.insert(arguments.begin(), {"bench", "run", "--commands", "--quiet", "--trace-mib",
                                         "1", "--trace-dir", traces_.path(), "--out", "-"});
    return SucceedJson(arguments);
  }

  bool NothingIsLeft() const { return std::filesystem::is_empty(traces_.path()); }

  const TempDir traces_, dir_;
};

TEST_F(BenchCommands, TimeEachCommandBesideItsLimit) {
  const json result = Run({"--repetitions", "2", "--threads", "1"});
  EXPECT_EQ(result["dlsim"]["schema"], "dlsim.bench/1");
  EXPECT_EQ(result["dlsim"]["suite"], "commands");
  EXPECT_EQ(result["dlsim"]["trace_mib"], "1");
  EXPECT_TRUE(result["dlsim"].contains("cpu_model"));
  std::set<std::string> names;
  for (const json& entry : result["benchmarks"]) {
    const std::string name = entry["name"];
    names.insert(name);
    EXPECT_GT(entry["real_time"], 0) << name;
    EXPECT_GT(entry["bytes_per_second"], 0) << name;
    EXPECT_GT(entry["fraction_of_stream"], 0) << name;
    EXPECT_EQ(entry.contains("label"), name.starts_with("Stream/")) << name;
  }
  EXPECT_EQ(result["benchmarks"].size(), 2 * names.size());
  for (const std::string shape : {"large", "small"}) {
    for (const std::string command :
         {"Stream/pread/256KiB/-", "Command/replay/fp16/cerebras-2.10", "Command/replay/fp16/all",
          "Command/profile/all/-", "Command/sweep/fp16/torch", "Command/tune/fp16/cerebras-2.10"}) {
      EXPECT_TRUE(names.contains(command + "/" + shape + "/cached/threads:1")) << command;
    }
  }
  EXPECT_TRUE(NothingIsLeft());
}

TEST_F(BenchCommands, TellBeforehandAndReportAfterwards) {
  const std::string out = dir_.path() + "/new.json";
  const CommandResult result =
      RunCommand({"bench", "run", "--commands", "--trace-mib", "1", "--trace-dir", traces_.path(),
                  "--out", out, "--filter", "(replay/fp16/cerebras|Stream)", "--sizes", "small",
                  "--threads", "1,2", "--repetitions", "6"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("6 repetitions of 4 commands take about"), std::string::npos)
      << result.err;
  for (const char* const words : {"of limit", "speed-up", "serial", "16 cores", "64 cores",
                                  "Command/replay/fp16/cerebras-2.10/small/cached/threads:2"}) {
    EXPECT_NE(result.out.find(words), std::string::npos) << words << "\n" << result.out;
  }
  const json scaling = json::parse(ReadBytes(out))["dlsim"]["scaling"];
  ASSERT_EQ(scaling.size(), 1u);
  EXPECT_GE(scaling[0]["serial_share"], 0);
  EXPECT_LE(scaling[0]["efficiency"]["64"], 1);
  const std::string text = Succeed({"bench", "gate", out, out});
  EXPECT_NE(text.find("2 kernels compared: 0 slower"), std::string::npos) << text;
  EXPECT_EQ(Succeed({"bench", "bless", out, "--baseline-dir", dir_.path()}).find(dir_.path()), 0u);
  const std::string kernels = dir_.Write("k.json", BenchDocument({{"k", {1, 2}}}).dump());
  ExpectFailure({"bench", "compare", kernels, out}, 4, {"suite none against 'commands'"});
}

TEST_F(BenchCommands, ReadColdFilesWhereTheyAreReadOnce) {
  const json result = Run({"--cold", "--repetitions", "1", "--threads", "1", "--sizes", "large"});
  ASSERT_EQ(result["benchmarks"].size(), 3u);
  for (const json& entry : result["benchmarks"]) {
    EXPECT_NE(entry["name"].get<std::string>().find("/large/cold/"), std::string::npos);
  }
}

TEST_F(BenchCommands, RejectWrongUsage) {
  const auto expect = [&](Arguments arguments, const Arguments& words) {
    arguments.insert(arguments.begin(), {"bench", "run", "--out", "-"});
    ExpectFailure(arguments, 2, words);
  };
  expect({"--commands", "--trace-mib", "0"}, {"--trace-mib: out of range"});
  expect({"--commands", "--filter", "nothing"}, {"--filter: no command matches", "'nothing'"});
  expect({"--commands", "--sizes", "huge"}, {"--sizes", "large, small", "'huge'"});
  expect({"--commands", "--threads", "0"}, {"--threads: out of range"});
  expect({"--commands", "--instructions"}, {"--commands", "--instructions"});
  expect({"--trace-mib", "1"}, {"--trace-mib", "--commands"});
  expect({"--cold"}, {"--cold", "--commands"});
  ExpectFailure({"bench", "run", "--commands", "--out", "-", "--trace-dir", "/nonexistent"}, 3,
                {"/nonexistent", "cannot be made"});
  const std::string no_directory = dir_.Write("file", "");
  ExpectFailure({"bench", "run", "--commands", "--out", "-", "--trace-dir", no_directory}, 3,
                {no_directory, "cannot be made"});
}

// A kill that no program can handle, and so that of its children.
TEST_F(BenchCommands, LeaveNothingWhenKilled) {
  Arguments arguments = {DLSIM_COMMAND,
                         "bench",
                         "run",
                         "--commands",
                         "--quiet",
                         "--trace-mib",
                         "8",
                         "--trace-dir",
                         traces_.path(),
                         "--out",
                         dir_.path() + "/new.json"};
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t process = 0;
  ASSERT_EQ(posix_spawn(&process, argv[0], nullptr, nullptr, argv.data(), environ), 0);
  const auto wait_until = [](const auto& is_so) {
    for (int i = 0; i < 6000 && !is_so(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return is_so();
  };
  EXPECT_TRUE(wait_until([&] { return !NothingIsLeft(); }));
  kill(process, SIGKILL);
  waitpid(process, nullptr, 0);
  EXPECT_TRUE(wait_until([&] { return NothingIsLeft(); }));
}

}  // namespace
}  // namespace dlsim::sim
