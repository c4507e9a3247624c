// SPDX-License-Identifier: Apache-2.0
// dlsim bench as users run it: exit codes, messages, files. DLSIM_FAKE_BENCH stands for
// dlsim_bench.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/bench_samples.h"
#include "tests/support/run_command.h"

namespace dlsim::sim {
namespace {

using nlohmann::json;

constexpr const char* kEncode = "Encode/cb16/rne/AVX2/L2/grad/threads:1";
constexpr const char* kDecode = "Decode/cb16/-/AVX2/L2/grad/threads:1";

std::vector<double> Times(double factor) {
  std::vector<double> times;
  for (int i = 0; i < 11; ++i) times.push_back(factor * (100 + 0.01 * i));
  return times;
}

// Sets an environment variable for the commands of a test.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    const char* const before = getenv(name);
    if (before != nullptr) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~Environment() { before_.empty() ? unsetenv(name_) : setenv(name_, before_.c_str(), 1); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::string before_;
};

class BenchCommand : public testing::Test {
 protected:
  std::string Write(const std::string& name, const json& document) {
    return dir_.Write(name, document.dump());
  }
  std::string File(const char* name) const { return dir_.path() + "/" + name; }
  size_t FileCount() const {
    const std::filesystem::directory_iterator files(dir_.path());
    return static_cast<size_t>(std::distance(begin(files), end(files)));
  }

  const TempDir dir_;
  const Environment bench_{"DLSIM_BENCH", DLSIM_FAKE_BENCH};
};

TEST_F(BenchCommand, ComparePrintsTheRuleATableAndASummary) {
  const std::string base =
      Write("a.json", BenchDocument({{kEncode, Times(1)}, {"gone", Times(1)}}));
  const std::string next = Write("b.json", BenchDocument({{kEncode, Times(2)}, {"new", Times(1)}}));
  const std::string text = Succeed({"bench", "compare", base, next});
  for (const char* const words :
       {kEncode, "slower", "+100.0 %", "50 %", "median time up by more than 5 %", "p < 0.01",
        "only in base: gone", "only in new: new",
        "1 kernel compared: 1 slower, 0 inconclusive, 0 faster, 0 same"}) {
    EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
  }
}

TEST_F(BenchCommand, CompareWritesJson) {
  const std::string base = Write("a.json", BenchDocument({{kEncode, Times(1)}}));
  const std::string next = Write("b.json", BenchDocument({{kEncode, Times(2)}}));
  const json result = SucceedJson({"bench", "compare", base, next, "--json", "-"});
  EXPECT_EQ(result["schema"], "dlsim.bench.compare/1");
  EXPECT_EQ(result["summary"]["slower"], 1);
  const json& kernel = result["kernels"][0];
  EXPECT_EQ(kernel["verdict"], "slower");
  EXPECT_EQ(kernel["median_ratio"], 2);
  EXPECT_EQ(kernel["probability_slower"], 1);
  EXPECT_EQ(kernel["base"]["repetitions"], 11);
  Succeed({"bench", "compare", base, next, "--json", File("c.json")});
  EXPECT_EQ(json::parse(ReadBytes(File("c.json"))), result);
}

TEST_F(BenchCommand, GateFailsIfAKernelIsSlower) {
  const std::string base =
      Write("a.json", BenchDocument({{kEncode, Times(1)}, {kDecode, Times(1)}}));
  const std::string next =
      Write("b.json", BenchDocument({{kEncode, Times(1.2)}, {kDecode, Times(0.5)}}));
  const CommandResult result = RunCommand({"bench", "gate", base, next});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err, std::string("dlsim bench gate: slower: ") + kEncode + " (+20.0 %)\n");
  EXPECT_NE(result.out.find("1 slower"), std::string::npos);
  Succeed({"bench", "gate", base, base});
  Succeed({"bench", "gate", base, next, "--threshold", "30%"});
  Succeed({"bench", "gate", base, next, "--threshold", "0.3"});
  Succeed({"bench", "gate", base, next, "--filter", "^Decode"});
  Succeed({"bench", "gate", next, base, "--filter", "^Encode"});  // faster
}

TEST_F(BenchCommand, GateLetsLimitsAndPeersBe) {
  json base = BenchDocument({{kEncode, Times(1)}, {kDecode, Times(1)}});
  json next = BenchDocument({{kEncode, Times(2)}, {kDecode, Times(2)}});
  for (size_t i = 0; i < next["benchmarks"].size(); ++i) {
    next["benchmarks"][i]["label"] = i < Times(1).size() ? "peer" : "limit";
  }
  const std::string a = Write("a.json", base), b = Write("b.json", next);
  const std::string text = Succeed({"bench", "gate", a, b});
  EXPECT_NE(text.find("0 kernels compared: 0 slower, 0 inconclusive, 0 faster, 0 same; "
                      "2 limits and peers unjudged"),
            std::string::npos)
      << text;
  const json result = SucceedJson({"bench", "compare", a, b, "--json", "-"});
  EXPECT_EQ(result["summary"]["unjudged"], 2);
  EXPECT_EQ(result["kernels"][0]["verdict"], "unjudged");
}

TEST_F(BenchCommand, IncomparableFilesExitWith4) {
  const std::string base = Write("a.json", BenchDocument({{kEncode, Times(1)}}));
  json other = BenchDocument({{kEncode, Times(1)}});
  other["dlsim"]["cpu_model"] = "B";
  other["dlsim"]["compiler"] = "Clang";
  ExpectFailure(
      {"bench", "compare", base, Write("b.json", other)}, 4,
      {"cpu_model 'Some CPU (R) 1.0' against 'B'", "compiler 'GNU 12.2.0' against 'Clang'"});
  ExpectFailure({"bench", "gate", base, Write("c.json", InstructionDocument({{kEncode, 1}}))}, 4,
                {"kind 'time' against 'instructions'"});
  ExpectFailure({"bench", "compare", base, base, "--filter", "nothing"}, 4, {"no chosen kernel"});
}

TEST_F(BenchCommand, RejectsWrongUsageAndBadFiles) {
  const std::string base = Write("a.json", BenchDocument({{kEncode, Times(1)}}));
  ExpectFailure({"bench", "gat"}, 2, {"unknown command", "did you mean 'gate'?"});
  ExpectFailure({"bench", "compare"}, 2, {"no file"});
  ExpectFailure({"bench", "compare", base, base, base}, 2, {});
  ExpectFailure({"bench", "compare", base, base, "--threshold", "5"}, 2,
                {"--threshold: out of range (did you mean '5%'?), expected 0% or more"});
  ExpectFailure({"bench", "compare", base, base, "--threshold", "x%"}, 2, {"--threshold"});
  ExpectFailure({"bench", "compare", base, base, "--alpha", "-1"}, 2, {"--alpha"});
  ExpectFailure({"bench", "compare", base, base, "--filter", "("}, 2, {"--filter"});
  ExpectFailure({"bench", "gate", base, dir_.Write("b.json", "{")}, 3, {"b.json: bad JSON"});
  ExpectFailure({"bench", "gate", "--instructions", base, base}, 3, {"holds times"});
  for (const char* const command : {"run", "compare", "gate", "bless"}) {
    EXPECT_NE(Succeed({"bench", command, "--help"}).find("Examples:"), std::string::npos);
  }
}

TEST_F(BenchCommand, BlessStoresTheBaselineOfTheProcessor) {
  const std::string base = Write("a.json", BenchDocument({{kEncode, Times(1)}}));
  const std::string next = Write("b.json", BenchDocument({{kEncode, Times(2)}}));
  const std::string baselines = File("deep/baselines");
  const Arguments at = {"--baseline-dir", baselines};
  ExpectFailure({"bench", "compare", next, at[0], at[1]}, 3,
                {"no baseline for this processor", "dlsim bench bless"});
  const std::string stored = baselines + "/some-cpu-r-1-0.json";
  EXPECT_EQ(Succeed({"bench", "bless", base, at[0], at[1]}), stored + "\n");
  EXPECT_EQ(ReadBytes(stored), ReadBytes(base));
  EXPECT_EQ(RunCommand({"bench", "gate", next, at[0], at[1]}).exit_code, 1);
  const std::string counts = Write("c.json", InstructionDocument({{kEncode, 1000}}));
  EXPECT_EQ(Succeed({"bench", "bless", counts, at[0], at[1]}),
            baselines + "/some-cpu-r-1-0.instructions.json\n");
  json few = BenchDocument({{kEncode, {1, 2, 3}}});
  ExpectFailure({"bench", "bless", Write("d.json", few)}, 3, {"too few repetitions", kEncode});
  few.erase("dlsim");
  ExpectFailure({"bench", "bless", Write("d.json", few)}, 3, {"does not tell its processor"});
}

TEST_F(BenchCommand, TheBaselineIsNoOutput) {
  const std::string next = Write("b.json", BenchDocument({{kEncode, Times(2)}}));
  const std::string stored = File("some-cpu-r-1-0.json");
  for (const char* const command : {"compare", "gate"}) {
    Succeed({"bench", "bless", next, "--baseline-dir", dir_.path()});
    ExpectFailure({"bench", command, next, "--baseline-dir", dir_.path(), "--json", stored}, 2,
                  {"--json: would replace what --baseline-dir names", "expected another file"});
    EXPECT_EQ(ReadBytes(stored), ReadBytes(next));
  }
}

TEST_F(BenchCommand, RunSpreadsRepetitionsOverProcesses) {
  Succeed({"bench", "run", "--repetitions", "7", "--processes", "3", "--out", File("r.json")});
  const json result = json::parse(ReadBytes(File("r.json")));
  EXPECT_EQ(result["dlsim"]["schema"], "dlsim.bench/1");
  EXPECT_EQ(result["dlsim"]["processes"], 3);
  EXPECT_EQ(result["dlsim"]["repetitions"], 7);
  EXPECT_EQ(result["dlsim"]["cpu_model"], "Fake CPU");
  ASSERT_EQ(result["benchmarks"].size(), 21u);
  std::vector<int> processes;
  for (size_t i = 0; i < 7; ++i) {
    const json& entry = result["benchmarks"][i];
    EXPECT_EQ(entry["name"], kEncode);
    EXPECT_EQ(entry["repetition_index"], i);
    EXPECT_EQ(entry["repetitions"], 7);
    processes.push_back(entry["process"]);
  }
  EXPECT_EQ(processes, (std::vector<int>{0, 0, 0, 1, 1, 2, 2}));
  Succeed({"bench", "compare", File("r.json"), File("r.json")});
}

TEST_F(BenchCommand, RunSelectsByPatternAndSize) {
  const auto names = [&](Arguments arguments) {
    arguments.insert(arguments.begin(), {"bench", "run", "--out", "-", "--repetitions", "1"});
    const json result = SucceedJson(arguments);
    std::string text;
    for (const json& entry : result["benchmarks"]) text += entry["name"].get<std::string>() + " ";
    return text;
  };
  const std::string encode = kEncode, decode = kDecode;
  EXPECT_EQ(names({"--sizes", "L2"}), encode + " " + decode + " ");
  EXPECT_EQ(names({"--filter", "^Encode", "--sizes", "L1,L2"}), encode + " ");
  EXPECT_EQ(names({"--filter", "^Decode"}), decode + " ");
  const Arguments run = {"bench", "run", "--out", File("r.json")};
  const auto expect = [&](Arguments arguments, const Arguments& words) {
    arguments.insert(arguments.begin(), run.begin(), run.end());
    ExpectFailure(arguments, 2, words);
    EXPECT_EQ(FileCount(), 0u);
  };
  expect({"--sizes", "L3"}, {"--sizes: unknown size", "DRAM, L2", "'L3'"});
  expect({"--filter", "nothing"}, {"--filter: no benchmark matches", "'nothing'"});
  expect({"--repetitions", "0"}, {"--repetitions"});
  expect({"--processes", "12"}, {"--processes", "at most 11"});
  expect({"--min-time", "0"}, {"--min-time"});
}

TEST_F(BenchCommand, AFailedRunLeavesNothing) {
  const Arguments run = {"bench", "run", "--out", File("r.json")};
  const auto expect = [&](const char* how, int exit_code, const Arguments& words) {
    const Environment fake("FAKE_BENCH", how);
    ExpectFailure(run, exit_code, words);
    EXPECT_EQ(FileCount(), 0u);
  };
  expect("fail", 2, {"failed with exit code 2: dlsim_bench: --threads: out of range"});
  expect("die", 70, {"ended by a signal (Killed)"});
  expect("garbage", 70, {"no JSON"});
  {
    const Environment missing("DLSIM_BENCH", "/nonexistent");
    ExpectFailure(run, 3, {"$DLSIM_BENCH: no such program", "/nonexistent"});
  }
  ExpectFailure({"bench", "run", "--out", "/nonexistent/r.json"}, 3, {"cannot be written"});
}

// Ctrl-C reaches the whole group of processes, but kill(1) and a closing terminal only dlsim.
TEST_F(BenchCommand, ASignalEndsTheRunAndItsProcessAndLeavesNothing) {
  const Environment fake("FAKE_BENCH", "hang");
  const std::string out = File("r.json"), alive = File("alive");
  ASSERT_EQ(mkfifo(alive.c_str(), 0600), 0);
  const Environment reports("FAKE_BENCH_ALIVE", alive);
  std::vector<std::string> arguments = {DLSIM_COMMAND, "bench", "run", "--out", out};
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t process = 0;
  ASSERT_EQ(posix_spawn(&process, argv[0], nullptr, nullptr, argv.data(), environ), 0);
  const int pipe = open(alive.c_str(), O_RDONLY);  // waits until the child hangs
  char byte = 0;
  ASSERT_EQ(read(pipe, &byte, 1), 1);
  kill(process, SIGTERM);
  int status = 0;
  waitpid(process, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  EXPECT_EQ(read(pipe, &byte, 1), 0);  // the child is gone, too, and its end of the pipe with it
  close(pipe);
  std::filesystem::remove(alive);
  EXPECT_EQ(FileCount(), 0u);
}

TEST_F(BenchCommand, CountingInstructionsNeedsValgrind) {
  const Environment path("PATH", "/nonexistent");
  ExpectFailure({"bench", "run", "--instructions", "--out", File("r.json")}, 3,
                {"valgrind: not found"});
  EXPECT_EQ(FileCount(), 0u);
}

TEST_F(BenchCommand, InstructionsAreTheSameAgain) {
  if (DLSIM_SANITIZE[0] != '\0') GTEST_SKIP() << "Valgrind runs no programs with sanitizers";
  Succeed({"bench", "run", "--instructions", "--sizes", "L2", "--out", File("i.json")});
  const json counts = json::parse(ReadBytes(File("i.json")));
  EXPECT_EQ(counts["dlsim"]["kind"], "instructions");
  EXPECT_EQ(counts["dlsim"]["simd_target"], "AVX2");
  ASSERT_EQ(counts["benchmarks"].size(), 2u);
  EXPECT_GT(counts["benchmarks"][0]["instructions"], counts["benchmarks"][1]["instructions"]);
  const std::string text = Succeed({"bench", "gate", "--instructions", File("i.json")});
  EXPECT_NE(text.find("2 kernels compared: 0 slower"), std::string::npos) << text;
  json fewer = counts;
  fewer["benchmarks"][1]["instructions"] = counts["benchmarks"][1]["instructions"].get<int>() / 2;
  const CommandResult slower =
      RunCommand({"bench", "gate", "--instructions", Write("f.json", fewer)});
  EXPECT_EQ(slower.exit_code, 1);
  EXPECT_NE(slower.err.find(kDecode), std::string::npos) << slower.err;
  Succeed({"bench", "gate", "--instructions", File("i.json"), File("i.json")});
}

}  // namespace
}  // namespace dlsim::sim
