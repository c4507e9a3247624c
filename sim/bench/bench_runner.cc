// SPDX-License-Identifier: Apache-2.0
#include "sim/bench/bench_runner.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "dlsim/error.h"
#include "sim/bench/benchmark_file.h"
#include "sim/bench/child_process.h"
#include "sim/bench/kernel_selection.h"

namespace dlsim::sim {
namespace {

constexpr const char* kProgram = "dlsim_bench";

// Gathers repetitions by benchmark, in the order of the first process.
class Merger {
 public:
  void Add(const Json& document, uint64_t process) {
    for (const Json& entry : document.at("benchmarks")) {
      if (entry.value("run_type", "iteration") == "aggregate") continue;
      const std::string name = entry.at("run_name");
      const auto [found, is_new] = index_.try_emplace(name, kernels_.size());
      if (is_new) kernels_.emplace_back();
      kernels_[found->second].push_back(entry);
      kernels_[found->second].back()["process"] = process;
    }
  }

  // All entries, numbered as if one process had made them.
  Json Take() {
    Json entries = Json::array();
    for (size_t family = 0; family < kernels_.size(); ++family) {
      for (size_t i = 0; i < kernels_[family].size(); ++i) {
        Json& entry = kernels_[family][i];
        entry["family_index"] = family;
        entry["repetitions"] = kernels_[family].size();
        entry["repetition_index"] = i;
        entries.push_back(std::move(entry));
      }
    }
    return entries;
  }

 private:
  std::unordered_map<std::string, size_t> index_;
  std::vector<std::vector<Json>> kernels_;
};

// The share of process `index` when `total` is dealt out evenly.
uint64_t Share(uint64_t total, uint64_t processes, uint64_t index) {
  return total / processes + (index < total % processes ? 1 : 0);
}

std::vector<std::string> CommonArguments(const std::string& program, const BenchRequest& request) {
  std::vector<std::string> arguments = {program};
  for (const auto& [option, value] :
       {std::pair<const char*, const std::string&>{"--threads", request.threads},
        {"--targets", request.targets},
        {"--dram-mib", request.dram_mib},
        {"--device", request.device}}) {
    if (!value.empty()) arguments.insert(arguments.end(), {option, value});
  }
  return arguments;
}

// The sizes that there are, for an error.
std::string KnownSizes(const std::vector<std::string>& names) {
  std::set<std::string> sizes;
  for (const std::string& name : names) sizes.insert(SizeOf(name));
  sizes.erase("");
  return fmt::format("some of {}", fmt::join(sizes, ", "));
}

}  // namespace

uint64_t ProcessCount(const BenchRequest& request) {
  if (request.repetitions == 0) throw UsageError("--repetitions", "zero", "1 or more");
  const uint64_t processes = request.processes == 0 ? request.repetitions : request.processes;
  if (processes <= request.repetitions) return processes;
  throw UsageError("--processes", "more than repetitions",
                   fmt::format("at most {}", request.repetitions), std::to_string(processes));
}

std::string FindBenchProgram() {
  if (const char* const named = std::getenv("DLSIM_BENCH"); named != nullptr) {
    if (access(named, X_OK) == 0) return named;
    throw InputError("$DLSIM_BENCH", "no such program", "the path of dlsim_bench", Quoted(named));
  }
  std::error_code ignored;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::string program = (own.parent_path() / kProgram).string();
  if (access(program.c_str(), X_OK) == 0) return program;
  throw InputError(Printable(program),
                   "not built; configure with -DDLSIM_BUILD_BENCHMARKS=ON (needs libbenchmark-dev) "
                   "and build, or set DLSIM_BENCH");
}

std::vector<std::string> ListKernels(const std::string& program, const BenchRequest& request) {
  const KernelSelection selection(request.filter, request.sizes);
  std::vector<std::string> arguments = CommonArguments(program, request);
  arguments.emplace_back("--benchmark_list_tests=true");
  std::istringstream lines(RunChild(arguments, ChildEnvironment::kInherited));
  std::vector<std::string> all, chosen;
  for (std::string name; std::getline(lines, name);) {
    if (name.empty()) continue;
    all.push_back(name);
    if (selection.Contains(name)) chosen.push_back(name);
  }
  if (!chosen.empty()) return chosen;
  for (const std::string& size : SplitAtCommas(request.sizes)) {
    const bool is_known = std::ranges::count(all, size, SizeOf) > 0;
    if (!request.sizes.empty() && !is_known) {
      throw UsageError("--sizes", "unknown size", KnownSizes(all), Quoted(size));
    }
  }
  throw UsageError("--filter", "no benchmark matches",
                   fmt::format("part of one of {} names", all.size()), Quoted(request.filter));
}

std::vector<std::string> BenchArguments(const std::string& program, const BenchRequest& request,
                                        const std::vector<std::string>& names) {
  std::vector<std::string> arguments = CommonArguments(program, request);
  // One pattern cannot ask for both. Naming all the names would exceed what std::regex takes where
  // there are thousands of them.
  const std::string pattern = request.sizes.empty()    ? request.filter
                              : request.filter.empty() ? SizePattern(request.sizes)
                                                       : ExactPattern(names);
  if (!pattern.empty()) arguments.push_back("--benchmark_filter=" + pattern);
  return arguments;
}

Json RunBenchProgram(std::vector<std::string> arguments) {
  const MemoryFile file;
  arguments.push_back("--benchmark_out=" + file.path());
  arguments.emplace_back("--benchmark_out_format=json");
  RunChild(arguments, ChildEnvironment::kInherited);
  try {
    const Json document = Json::parse(file.Read());
    ParseBenchmarks(kProgram, document);  // a benchmark that failed is no result
    return document;
  } catch (const Json::exception& error) {
    throw Error(ErrorKind::kInternal, kProgram,
                "its output is no JSON: " + Printable(error.what()));
  }
}

Json DlsimBlock(const Json& context, std::string_view kind) {
  Json block = {{"schema", kBenchSchema}, {"kind", kind}};
  for (const char* const field : {"cpu_model", "simd_target", "compiler", "compiler_flags",
                                  "threads", "dram_mib", "dlsim_version"}) {
    if (!context.contains(field)) {
      throw Error(ErrorKind::kInternal, kProgram, fmt::format("its output has no \"{}\"", field));
    }
    block[field] = context[field];
  }
  for (const char* const field : kGpuFields) {
    if (context.contains(field)) block[field] = context[field];
  }
  block["date"] = context.value("date", "");
  return block;
}

Json RunBenchmarks(const std::string& program, const BenchRequest& request,
                   const ProcessObserver& observer) {
  const uint64_t processes = ProcessCount(request);
  std::vector<std::string> arguments =
      BenchArguments(program, request, ListKernels(program, request));
  arguments.emplace_back("--benchmark_enable_random_interleaving=true");
  arguments.push_back(fmt::format("--benchmark_min_time={}", request.min_time));
  Merger merger;
  Json context;
  for (uint64_t process = 0; process < processes; ++process) {
    std::vector<std::string> own = arguments;
    own.push_back(
        fmt::format("--benchmark_repetitions={}", Share(request.repetitions, processes, process)));
    const Json document = RunBenchProgram(own);
    if (process == 0) context = document["context"];
    merger.Add(document, process);
    observer(process + 1);
  }
  Json block = DlsimBlock(context, NameOf(BenchKind::kTime));
  block["processes"] = processes;
  block["repetitions"] = request.repetitions;
  block["min_time"] = request.min_time;
  return {{"context", context}, {"dlsim", block}, {"benchmarks", merger.Take()}};
}

}  // namespace dlsim::sim
