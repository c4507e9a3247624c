// SPDX-License-Identifier: Apache-2.0
// Stands for dlsim_bench where tests need one: three kernels whose times are known. The environment
// variable FAKE_BENCH makes it fail (fail, die, garbage, or hang once the pipe FAKE_BENCH_ALIVE has
// been told).
#include <signal.h>
#include <unistd.h>
#include <valgrind/callgrind.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

namespace {

struct Kernel {
  std::string name;
  int work;
};

const Kernel kKernels[] = {{"Encode/cb16/rne/AVX2/L2/grad/threads:1", 2000},
                           {"Decode/cb16/-/AVX2/L2/grad/threads:1", 1000},
                           {"Encode/cb16/rne/AVX2/DRAM/grad/threads:1", 3000}};

struct Options {
  std::regex filter{""};
  std::string out, instructions;
  int repetitions = 1;
  bool lists = false;
};

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::string value = argument.substr(argument.find('=') + 1);
    if (argument.starts_with("--benchmark_filter=")) {
      options.filter = std::regex(value, std::regex::extended);
    }
    if (argument.starts_with("--benchmark_out=")) options.out = value;
    if (argument.starts_with("--benchmark_repetitions=")) options.repetitions = std::stoi(value);
    if (argument.starts_with("--benchmark_list_tests")) options.lists = true;
    if (argument == "--instructions") options.instructions = argv[++i];
  }
  return options;
}

void Misbehave(const std::string& how) {
  if (how == "fail") {
    std::fputs("some diagnostics\ndlsim_bench: --threads: out of range\n", stderr);
    std::exit(2);
  }
  if (how == "die") raise(SIGKILL);
  if (how == "hang") {
    // Open for as long as this process lives.
    std::FILE* const alive = std::fopen(std::getenv("FAKE_BENCH_ALIVE"), "wb");
    std::fputc('.', alive);
    std::fflush(alive);
    pause();
  }
}

void Count(const Kernel& kernel) {
  volatile int sum = 0;
  CALLGRIND_START_INSTRUMENTATION;
  for (int i = 0; i < kernel.work; ++i) sum = sum + i;
  CALLGRIND_STOP_INSTRUMENTATION;
  CALLGRIND_DUMP_STATS_AT(kernel.name.c_str());
}

// Times differ a little from one repetition and process to the next, and never tie.
nlohmann::json Measure(const Kernel& kernel, int repetition) {
  const double noise = 1 + 1e-6 * (getpid() % 1000) + 1e-4 * repetition;
  return {
      {"name", kernel.name}, {"run_name", kernel.name},          {"run_type", "iteration"},
      {"repetitions", 1},    {"repetition_index", repetition},   {"threads", 1},
      {"iterations", 10},    {"real_time", kernel.work * noise}, {"cpu_time", kernel.work * noise},
      {"time_unit", "ns"}};
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  const char* const how = std::getenv("FAKE_BENCH");
  nlohmann::json document;
  document["context"] = {{"date", "2026-01-02T03:04:05+00:00"},
                         {"cpu_model", "Fake CPU"},
                         {"simd_target", "AVX3"},
                         {"compiler", "GNU 12.2.0"},
                         {"compiler_flags", "-O3"},
                         {"threads", "1"},
                         {"dram_mib", "512"},
                         {"dlsim_version", "0.1.0"}};
  document["benchmarks"] = nlohmann::json::array();
  for (const Kernel& kernel : kKernels) {
    if (!std::regex_search(kernel.name, options.filter)) continue;
    if (options.lists) std::puts(kernel.name.c_str());
    if (!options.instructions.empty()) Count(kernel);
    for (int i = 0; i < options.repetitions; ++i) {
      document["benchmarks"].push_back(Measure(kernel, i));
    }
  }
  if (options.out.empty()) return 0;
  if (how != nullptr) Misbehave(how);
  std::ofstream(options.out) << (how != nullptr ? "garbage" : document.dump());
  return 0;
}
