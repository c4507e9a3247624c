// SPDX-License-Identifier: Apache-2.0
#include "sim/bench/callgrind.h"

#include <charconv>
#include <sstream>
#include <vector>

#include "dlsim/error.h"
#include "sim/bench/benchmark_file.h"
#include "sim/bench/child_process.h"
#include "sim/bench/kernel_selection.h"

namespace dlsim::sim {
namespace {

constexpr std::string_view kName = "desc: Trigger: Client Request: ";
constexpr std::string_view kOtherTrigger = "desc: Trigger: ";
constexpr std::string_view kTotals = "totals: ";

std::string FindValgrind() {
  const std::optional<std::string> valgrind = FindInPath("valgrind");
  if (valgrind) return *valgrind;
  throw InputError("valgrind", "not found; counting instructions needs it (Debian: valgrind)");
}

uint64_t ParseTotal(const std::string& line) {
  uint64_t total = 0;
  const char* const end = line.data() + line.size();
  const std::from_chars_result result = std::from_chars(line.data() + kTotals.size(), end, total);
  if (result.ec == std::errc() && result.ptr == end) return total;
  throw Error(ErrorKind::kInternal, "callgrind", "bad total", "a number", Quoted(line));
}

Json Entry(const std::string& name, uint64_t instructions) {
  return {{"name", name},
          {"run_name", name},
          {"run_type", "iteration"},
          {"repetitions", 1},
          {"repetition_index", 0},
          {"threads", ThreadsOf(name)},
          {"iterations", 1},
          {"instructions", instructions}};
}

// The machine and the build, which Callgrind does not tell: from one short native run.
Json ReadContext(const std::string& program, BenchRequest request, const std::string& name) {
  request.filter = ExactPattern({name});
  request.sizes.clear();
  std::vector<std::string> arguments = BenchArguments(program, request, {name});
  arguments.emplace_back("--benchmark_min_time=0.001");
  return RunBenchProgram(arguments)["context"];
}

}  // namespace

std::map<std::string, uint64_t> ParseCallgrind(std::string_view dumps) {
  std::map<std::string, uint64_t> counts;
  std::istringstream lines{std::string(dumps)};
  std::string name;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kName)) {
      name = line.substr(kName.size());
    } else if (line.starts_with(kOtherTrigger)) {
      name.clear();  // the end of the program
    } else if (line.starts_with(kTotals) && !name.empty()) {
      counts[name] = ParseTotal(line);
      name.clear();
    }
  }
  if (counts.empty()) throw Error(ErrorKind::kInternal, "callgrind", "no counts in its output");
  return counts;
}

Json CountInstructions(const std::string& program, BenchRequest request) {
  const std::string valgrind = FindValgrind();
  if (request.targets.empty()) request.targets = "AVX2";
  request.threads = "1";
  const std::vector<std::string> names = ListKernels(program, request);
  const Json context = ReadContext(program, request, names.front());
  const MemoryFile dumps;
  std::vector<std::string> arguments = {valgrind, "--tool=callgrind", "--instr-atstart=no",
                                        "--combine-dumps=yes",
                                        "--callgrind-out-file=" + dumps.path()};
  const std::vector<std::string> bench = BenchArguments(program, request, names);
  arguments.insert(arguments.end(), bench.begin(), bench.end());
  arguments.insert(arguments.end(), {"--instructions", "all"});
  RunChild(arguments, ChildEnvironment::kMinimal);
  const std::map<std::string, uint64_t> counts = ParseCallgrind(dumps.Read());
  Json entries = Json::array();
  for (const std::string& name : names) {
    const auto found = counts.find(name);
    if (found != counts.end()) entries.push_back(Entry(name, found->second));
  }
  Json block = DlsimBlock(context, NameOf(BenchKind::kInstructions));
  block["simd_target"] = request.targets;  // not the best of this machine
  return {{"context", context}, {"dlsim", block}, {"benchmarks", entries}};
}

}  // namespace dlsim::sim
