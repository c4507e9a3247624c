// SPDX-License-Identifier: Apache-2.0
// Reading benchmark results: Google Benchmark's own, dlsim's, and broken ones.
#include "sim/bench/benchmark_file.h"

#include <gtest/gtest.h>

#include <string>

#include "dlsim/error.h"
#include "sim/bench/baselines.h"
#include "sim/bench/kernel_selection.h"
#include "tests/support/bench_samples.h"
#include "tests/support/trace_test_util.h"

namespace dlsim::sim {
namespace {

using nlohmann::json;

constexpr const char* kName = "Encode/cb16/rne/AVX2/L2/grad/threads:1";

BenchmarkFile ReadText(const std::string& text) {
  const TempDir dir;
  return ReadBenchmarkFile(dir.Write("r.json", text));
}

BenchmarkFile Read(const json& document) { return ReadText(document.dump(1)); }

TEST(BenchmarkFile, GathersRepetitionsAndSkipsAggregates) {
  json document = BenchDocument({{kName, {100, 101}}, {"other/threads:2", {7}}});
  document["benchmarks"].push_back(
      {{"name", "x_mean"}, {"run_name", "x"}, {"run_type", "aggregate"}});
  const BenchmarkFile file = Read(document);
  ASSERT_EQ(file.kernels.size(), 2u);
  EXPECT_EQ(file.kernels[0].name, kName);
  EXPECT_EQ(file.kernels[0].cost, (std::vector<double>{100, 101}));  // CPU time
  EXPECT_EQ(file.kernels[0].bytes_per_second, (std::vector<double>{2e9, 2e9}));
  EXPECT_EQ(file.kernels[1].cost, std::vector<double>{14});  // wall-clock time
  EXPECT_EQ(file.processes, "11");
  EXPECT_TRUE(file.has_dlsim_block);
}

TEST(BenchmarkFile, KnowsTimeUnits) {
  for (const auto& [unit, factor] : {std::pair{"ns", 1.0}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}}) {
    json document = BenchDocument({{kName, {2}}});
    document["benchmarks"][0]["time_unit"] = unit;
    EXPECT_EQ(Read(document).kernels[0].cost[0], 2 * factor);
  }
}

TEST(BenchmarkFile, ReadsOtherGoogleBenchmarks) {
  json document = BenchDocument({{"BM_Sort/8", {3, 4, 5}}});
  document.erase("dlsim");
  const BenchmarkFile file = Read(document);
  EXPECT_FALSE(file.has_dlsim_block);
  EXPECT_EQ(file.identity.at("num_cpus"), "2");
  EXPECT_EQ(file.identity.at("mhz_per_cpu"), "2600");
  EXPECT_EQ(file.identity.at("library_build_type"), "release");
  EXPECT_EQ(file.kernels[0].bytes_per_second[0], 1e9);
}

// dlsim_bench puts into the context what `dlsim bench run` puts into a block of its own.
TEST(BenchmarkFile, ComparesTheOutputOfDlsimBenchWithThatOfTheCommand) {
  const json of_command = BenchDocument({{kName, {3}}});
  json of_program = of_command;
  of_program["context"].update(of_program["dlsim"]);
  of_program.erase("dlsim");
  EXPECT_NO_THROW(RequireComparable(Read(of_program), Read(of_command)));
}

TEST(BenchmarkFile, NamesEachFieldThatDiffersWithBothValues) {
  const BenchmarkFile base = Read(BenchDocument({{kName, {3}}}));
  for (const char* const field :
       {"cpu_model", "simd_target", "compiler", "compiler_flags", "threads", "dram_mib"}) {
    json document = BenchDocument({{kName, {3}}});
    const std::string before = document["dlsim"][field];
    document["dlsim"][field] = "another";
    try {
      RequireComparable(base, Read(document));
      ADD_FAILURE() << field;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIncomparable);
      const std::string expected = std::string(field) + " '" + before + "' against 'another'";
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  }
  try {
    RequireComparable(base, Read(InstructionDocument({{kName, 5}})));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("kind 'time' against 'instructions'"),
              std::string::npos);
  }
}

// Two GPUs, or a GPU and a CPU, in machines that are else alike.
TEST(BenchmarkFile, ResultsOfDifferentGpusAreIncomparable) {
  json document = BenchDocument({{"gpu/Encode/cb16/rne/DRAM/grad", {3}}});
  const BenchmarkFile of_cpu = Read(document);
  document["dlsim"].update(
      {{"gpu", "NVIDIA H200"}, {"gpu_driver", "580.65.06"}, {"cuda_compiler", "NVIDIA 13.0.88"}});
  const BenchmarkFile base = Read(document);
  EXPECT_NO_THROW(RequireComparable(base, Read(document)));
  for (const char* const field : {"gpu", "gpu_driver", "cuda_compiler"}) {
    json other = document;
    other["dlsim"][field] = "another";
    try {
      RequireComparable(base, Read(other));
      ADD_FAILURE() << field;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIncomparable);
      EXPECT_NE(std::string(error.what()).find(std::string(field) + " '"), std::string::npos);
    }
  }
  EXPECT_THROW(RequireComparable(base, of_cpu), Error);
  EXPECT_THROW(RequireComparable(of_cpu, base), Error);
  EXPECT_EQ(BaselinePath("b", base), "b/nvidia-h200.json");
}

// What the host's processor does meanwhile is not what is measured.
TEST(BenchmarkFile, TheTimeOfAGpuKernelIsTheDevices) {
  json document = BenchDocument({{"gpu/Encode/cb16/rne/DRAM/grad", {100}}});
  document["dlsim"]["gpu"] = "NVIDIA H200";
  const BenchmarkFile file = Read(document);
  EXPECT_EQ(file.kernels[0].cost, std::vector<double>{200});  // real_time
  EXPECT_EQ(file.kernels[0].bytes_per_second, std::vector<double>{1e9});
}

TEST(BenchmarkFile, PlainFilesMustAgreeInMachineAndBuild) {
  json document = BenchDocument({{"x", {3}}});
  document.erase("dlsim");
  const BenchmarkFile base = Read(document);
  for (const char* const field : {"num_cpus", "mhz_per_cpu", "library_build_type"}) {
    json other = document;
    other["context"][field] = 1;
    EXPECT_THROW(RequireComparable(base, Read(other)), Error) << field;
    other["context"].erase(field);
    EXPECT_THROW(RequireComparable(base, Read(other)), Error) << field;
  }
  EXPECT_THROW(RequireComparable(base, Read(BenchDocument({{"x", {3}}}))), Error);
}

// Instructions do not depend on the processor, only on the code.
TEST(BenchmarkFile, InstructionsCompareAcrossProcessors) {
  const BenchmarkFile base = Read(InstructionDocument({{kName, 5}}));
  json document = InstructionDocument({{kName, 5}});
  document["dlsim"]["cpu_model"] = "another";
  document["dlsim"]["dram_mib"] = "another";
  EXPECT_NO_THROW(RequireComparable(base, Read(document)));
  document["dlsim"]["compiler"] = "another";
  EXPECT_THROW(RequireComparable(base, Read(document)), Error);
}

TEST(BenchmarkFile, RejectsEveryTruncation) {
  const std::string text = BenchDocument({{kName, {100, 101}}}).dump(1);
  for (size_t size = 0; size < text.size(); size += 7) {
    ExpectInputError([&] { ReadText(text.substr(0, size)); }, {"r.json: "});
  }
}

TEST(BenchmarkFile, SaysWhatIsWrongWhere) {
  const json good = BenchDocument({{kName, {100}}});
  const auto expect = [&](const char* pointer, const json& value,
                          std::initializer_list<std::string_view> words) {
    json bad = good;
    bad[json::json_pointer(pointer)] = value;
    ExpectInputError([&] { Read(bad); }, words);
  };
  ExpectInputError([&] { Read(json(5)); }, {"r.json: no result of a benchmark"});
  ExpectInputError([&] { Read(json::object()); }, {"no result of a benchmark"});
  expect("/context", 5, {"bad \"context\""});
  expect("/benchmarks", 5, {"bad \"benchmarks\""});
  expect("/benchmarks", json::array(), {"no benchmark in it"});
  expect("/benchmarks/0", 5, {"bad benchmark"});
  expect("/benchmarks/0/run_name", 5, {"bad \"run_name\""});
  expect("/benchmarks/0/cpu_time", "fast", {kName, "bad \"cpu_time\"", "fast"});
  expect("/benchmarks/0/cpu_time", 0, {"bad \"cpu_time\"", "positive"});
  expect("/benchmarks/0/cpu_time", -1, {"bad \"cpu_time\""});
  expect("/benchmarks/0/real_time", "fast", {"bad \"real_time\""});
  expect("/benchmarks/0/time_unit", "weeks", {"bad \"time_unit\"", "weeks"});
  expect("/benchmarks/0/error_occurred", true, {kName, "the benchmark failed"});
  expect("/dlsim", 5, {"bad \"dlsim\""});
  expect("/dlsim/schema", "dlsim.bench/2", {"unknown schema", "dlsim.bench/1", "dlsim.bench/2"});
  expect("/dlsim/kind", "weight", {"bad \"kind\"", "weight"});
  ExpectInputError([] { ReadBenchmarkFile("/nonexistent.json"); }, {"/nonexistent.json"});
  ExpectInputError([] { ReadText(R"({"context":{},"context":{},"benchmarks":[]})"); },
                   {"duplicate"});
}

TEST(KernelSelection, SelectsByPatternAndSize) {
  EXPECT_TRUE(KernelSelection("").Contains(kName));
  EXPECT_TRUE(KernelSelection("^Encode/(cb|fp)16").Contains(kName));
  EXPECT_FALSE(KernelSelection("^Decode").Contains(kName));
  EXPECT_TRUE(KernelSelection("-^Decode").Contains(kName));
  EXPECT_TRUE(KernelSelection("", "L1,L2").Contains(kName));
  EXPECT_FALSE(KernelSelection("", "L1,DRAM").Contains(kName));
  EXPECT_TRUE(KernelSelection(SizePattern("L1,L2")).Contains(kName));
  EXPECT_FALSE(KernelSelection(SizePattern("L1,DRAM")).Contains(kName));
  EXPECT_FALSE(KernelSelection(SizePattern("AVX2")).Contains(kName));
  const KernelSelection exact(ExactPattern({"a.b", "c(d)/e+"}));
  EXPECT_TRUE(exact.Contains("a.b") && exact.Contains("c(d)/e+"));
  EXPECT_FALSE(exact.Contains("axb") || exact.Contains("a.bc") || exact.Contains("xa.b"));
  EXPECT_THROW(KernelSelection("("), Error);
}

TEST(Baselines, AreNamedForTheProcessor) {
  EXPECT_EQ(CpuSlug("AMD EPYC 9654 96-Core Processor"), "amd-epyc-9654-96-core-processor");
  EXPECT_EQ(CpuSlug("Intel(R) Xeon(R) CPU @ 2.20GHz"), "intel-r-xeon-r-cpu-2-20ghz");
  EXPECT_EQ(CpuSlug(" ../../etc "), "etc");
  EXPECT_EQ(CpuSlug(""), "");
}

}  // namespace
}  // namespace dlsim::sim
