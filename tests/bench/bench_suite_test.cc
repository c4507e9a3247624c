// SPDX-License-Identifier: Apache-2.0
// The contract of dlsim_bench: names, counters, context and mistakes of the user.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "dlsim/simd.h"
#include "tests/support/run_command.h"

namespace dlsim {
namespace {

const std::string kBest = SupportedSimdTargets().front();

Arguments QuickRun(const std::string& filter) {
  return {"--benchmark_filter=" + filter, "--benchmark_min_time=0.001", "--benchmark_format=json"};
}

nlohmann::json RunJson(const Arguments& arguments) {
  const CommandResult result = RunCommand(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out);
}

// Without OpenMP nothing shares an array out, and dlsim_bench refuses several threads.
bool TakesThreads() { return RunCommand({"--benchmark_list_tests", "--threads=2"}).exit_code == 0; }

TEST(BenchSuite, ListsKernelsStreamsAndDataSets) {
  if (!TakesThreads()) GTEST_SKIP() << "built without OpenMP";
  const auto names = Lines(Succeed({"--benchmark_list_tests", "--threads", "1,2"}));
  const auto lists = [&](const std::string& name) { return std::ranges::count(names, name) == 1; };
  for (const std::string threads : {"/threads:1", "/threads:2"}) {
    EXPECT_TRUE(lists("Encode/cb16/rne/" + kBest + "/L2/grad" + threads));
    EXPECT_TRUE(lists("Encode/fp16/sr/" + kBest + "/L1/normal" + threads));
    EXPECT_TRUE(lists("Decode/bf16/-/" + kBest + "/DRAM/normal" + threads));
    EXPECT_TRUE(lists("Measure/fp16/rne/" + kBest + "/DRAM/grad" + threads));
    EXPECT_TRUE(lists("Histogram/ladder/-/" + kBest + "/L2/grad" + threads));
  }
  EXPECT_EQ(Lines(Succeed({"--benchmark_list_tests",
                           "--benchmark_filter=^Stream/read4/plain/.*/L1/", "--threads=2"}))
                .size(),
            std::min<size_t>(2, SupportedSimdTargets().size()));
}

TEST(BenchSuite, ReportsCountersUnderTheListedNames) {
  const auto limit = RunJson(QuickRun("^Stream/read4/plain/[^/]*/L1/"));
  EXPECT_EQ(limit["benchmarks"][0]["label"], "limit");
  const std::string filter = "^(Encode|Decode|Measure)/cb16/(rne|-)/.*/L1/grad";
  const auto report = RunJson(QuickRun(filter));
  EXPECT_EQ(report["benchmarks"].size(), 3u);
  for (const auto& run : report["benchmarks"]) {
    const std::string name = run["name"];
    SCOPED_TRACE(name);
    EXPECT_TRUE(name.ends_with("/" + kBest + "/L1/grad/threads:1"));
    EXPECT_EQ(run["threads"], 1);
    EXPECT_FALSE(run.contains("label"));
    const double bytes = name.starts_with("Measure") ? 4 : 6;
    const double items = run["items_per_second"];
    EXPECT_NEAR(run["bytes_per_second"], bytes * items, 1e-6 * bytes * items);
    const double quartile = run["quartile_items_per_second"];
    const double stream = run["stream_items_per_second"];
    EXPECT_GT(quartile, 0);
    EXPECT_NEAR(run["fraction_of_stream"], quartile / stream, 1e-9);
  }
}

TEST(BenchSuite, RunsThreadsRepetitionsAndTargetsInRandomOrder) {
  if (!TakesThreads()) GTEST_SKIP() << "built without OpenMP";
  Arguments arguments = QuickRun("^Encode/fp16/rne/" + kBest + "/L1/normal");
  arguments.insert(arguments.end(), {"--threads=2", "--targets", "all", "--benchmark_repetitions=3",
                                     "--benchmark_enable_random_interleaving=true"});
  const auto report = RunJson(arguments);
  int repetitions = 0;
  for (const auto& run : report["benchmarks"]) {
    EXPECT_EQ(run["threads"], 2);
    EXPECT_EQ(run["run_name"], "Encode/fp16/rne/" + kBest + "/L1/normal/threads:2");
    repetitions += run["run_type"] == "iteration";
  }
  EXPECT_EQ(repetitions, 3);
}

TEST(BenchSuite, TellsWhereItRan) {
  const auto context = RunJson(QuickRun("^Stream/read4/plain/.*/L1/"))["context"];
  for (const char* key :
       {"dlsim_version", "compiler", "compiler_flags", "cpu_model", "l2_bytes", "llc_bytes"}) {
    EXPECT_TRUE(context[key].is_string()) << key;
  }
  EXPECT_EQ(context["simd_target"], kBest);
  EXPECT_EQ(context["threads"], "1");
  EXPECT_GE(std::stoi(std::string(context["dram_mib"])), 512);
}

TEST(BenchSuite, PlantsWorkInDlsimKernelsThatMatch) {
  const std::string cb16 = "Encode/cb16/rne/" + kBest + "/L2/normal/threads:1";
  const std::string fp16 = "Encode/fp16/rne/" + kBest + "/L2/normal/threads:1";
  Arguments arguments = QuickRun("^(" + cb16 + "|" + fp16 + ")$");
  const auto fraction_of_first = [&] {
    double cb16_rate = 0, fp16_rate = 0;
    const auto report = RunJson(arguments);
    for (const auto& run : report["benchmarks"]) {
      (run["name"] == cb16 ? cb16_rate : fp16_rate) = run["quartile_items_per_second"];
    }
    return cb16_rate / fp16_rate;
  };
  const double before = fraction_of_first();
  arguments.push_back("--plant=1000:/cb16/");
  // Eleven times the work; the margin is for machines on which others work.
  EXPECT_LT(fraction_of_first(), 0.5 * before);
}

TEST(BenchSuite, CountsInstructionsOfOneKernelOrOfAll) {
  const std::string name = "Encode/cb16/rne/" + kBest + "/L1/grad/threads:1";
  const CommandResult one = RunCommand({"--instructions", name});
  if (one.exit_code == 2 && one.err.find("callgrind.h") != std::string::npos) GTEST_SKIP();
  EXPECT_EQ(one.out, name + "\n");
  const std::string filter = "--benchmark_filter=/cb16/(rne|-)/.*/grad";
  EXPECT_EQ(Lines(Succeed({"--instructions", "all", filter})).size(), 3u);
}

TEST(BenchSuite, ExplainsItself) {
  const std::string help = Succeed({"--help"});
  for (const char* option : {"--threads", "--targets", "--dram-mib", "--plant", "--instructions"}) {
    EXPECT_NE(help.find(option), std::string::npos) << option;
  }
}

TEST(BenchSuite, RefusesMistakesInOneLine) {
  ExpectFailure({"--targets", "AVX9"}, 2, {"SIMD target", "'AVX9'", kBest});
  ExpectFailure({"--targets=" + kBest + "," + kBest}, 2, {"--targets", "twice"});
  ExpectFailure({"--threads", "0"}, 2, {"--threads", "out of range"});
  ExpectFailure({"--threads", "1,,2"}, 2, {"--threads"});
  ExpectFailure({"--threads"}, 2, {"--threads", "no value"});
  ExpectFailure({"--plant", "10%"}, 2, {"--plant", "'10%'"});
  ExpectFailure({"--plant", "-1"}, 2, {"--plant", "out of range"});
  ExpectFailure({"--plant", "10:("}, 2, {"--plant", "malformed pattern"});
  ExpectFailure({"--dram-mib", "0"}, 2, {"--dram-mib", "out of range"});
  ExpectFailure({"--instructions", "Encode/fp17"}, 2, {"--instructions", "no such benchmark"});
  ExpectFailure({"--benchmark_filter=fp17"}, 2, {"--benchmark_filter", "no such benchmark"});
  ExpectFailure({"--benchmark_filter=("}, 2, {"--benchmark_filter", "malformed pattern"});
  ExpectFailure({"--benchmark_format=csv"}, 2, {"--benchmark_format", "'csv'"});
  ExpectFailure({"--benchmark_filter=/L1/", "--bogus"}, 2, {"unknown option", "'--bogus'"});
}

}  // namespace
}  // namespace dlsim
