// SPDX-License-Identifier: Apache-2.0
// The contract of dlsim_bench: names, rates, context and mistakes of the user.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "dlsim/convert.h"
#include "tests/support/run_command.h"

namespace dlsim {
namespace {

const std::string kBest = SupportedSimdTargets().front();

TEST(BenchSuite, ListsKernelsStreamsAndDataSets) {
  const auto names = Lines(Succeed({"--benchmark_list_tests", "--threads=1,2"}));
  const auto lists = [&](const std::string& name) { return std::ranges::count(names, name) == 1; };
  for (const std::string threads : {"/threads:1", "/real_time/threads:2"}) {
    EXPECT_TRUE(lists("Encode/cb16/rne/" + kBest + "/L2/grad" + threads));
    EXPECT_TRUE(lists("Encode/fp16/sr/" + kBest + "/L1/normal" + threads));
    EXPECT_TRUE(lists("Decode/bf16/-/" + kBest + "/DRAM/normal" + threads));
    EXPECT_TRUE(lists("Measure/fp16/rne/" + kBest + "/DRAM/grad" + threads));
    EXPECT_TRUE(lists("Measure/nvfp4/column/" + kBest + "/L2/grad" + threads));
    EXPECT_TRUE(lists("Tabulate/-/-/" + kBest + "/L2/normal" + threads));
    EXPECT_TRUE(lists("Ask/cb16/rne/" + kBest + "/L2/grad" + threads));
    EXPECT_TRUE(lists("Stream/read4/-/" + kBest + "/DRAM/normal" + threads));
  }
}

// Every kernel runs, on every SIMD target.
TEST(BenchSuite, ReportsRatesAndWhereItRan) {
  const auto report =
      nlohmann::json::parse(Succeed({"--targets=all", "--benchmark_filter=/L1/grad",
                                     "--benchmark_min_time=0.00001", "--benchmark_format=json"}));
  for (const char* key : {"dlsim_version", "compiler", "cpu_model", "dram_mib"}) {
    EXPECT_TRUE(report["context"][key].is_string()) << key;
  }
  size_t reads_and_writes = 0;
  for (const auto& run : report["benchmarks"]) {
    const std::string name = run["name"];
    SCOPED_TRACE(name);
    ASSERT_FALSE(run.contains("error_occurred"));
    const double items = run["items_per_second"];
    EXPECT_GT(items, 0);
    if (!name.starts_with("Encode/fp16/")) continue;
    EXPECT_NEAR(run["bytes_per_second"], 6 * items, 1e-6 * items);
    ++reads_and_writes;
  }
  EXPECT_EQ(reads_and_writes, 6 * SupportedSimdTargets().size());  // rounding modes
}

TEST(BenchSuite, RefusesMistakesInOneLine) {
  ExpectFailure({"--targets=AVX9"}, 2, {"SIMD target", "'AVX9'", kBest});
  ExpectFailure({"--threads=0"}, 2, {"--threads", "out of range"});
  ExpectFailure({"--threads=1,,2"}, 2, {"--threads"});
  ExpectFailure({"--dram-mib=0"}, 2, {"--dram-mib", "out of range"});
  ExpectFailure({"--bogus"}, 2, {"unknown option", "'--bogus'"});
}

}  // namespace
}  // namespace dlsim
