// SPDX-License-Identifier: Apache-2.0
#include "sim/bench/command_bench.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "sim/base/suggest.h"
#include "sim/bench/bench_traces.h"
#include "sim/bench/benchmark_file.h"
#include "sim/bench/child_process.h"
#include "sim/bench/command_cases.h"
#include "sim/bench/command_scaling.h"
#include "sim/bench/kernel_selection.h"
#include "sim/bench/scratch_directory.h"

namespace dlsim::sim {
namespace {

constexpr uint64_t kMaxMib = uint64_t{1} << 24;

// One and as many as there are.
std::vector<int> DefaultThreads() {
  const int all = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return all == 1 ? std::vector<int>{1} : std::vector<int>{1, all};
}

std::vector<int> ThreadCounts(const CommandBenchRequest& request) {
  return request.threads.empty() ? DefaultThreads()
                                 : ParseThreadCounts(request.threads, kMaxThreads);
}

std::vector<CommandCase> SelectCases(const CommandBenchRequest& request) {
  const KernelSelection selection(request.filter, request.sizes);
  for (const std::string& size : SplitAtCommas(request.sizes)) {
    if (!size.empty()) ParseNamed<TraceShape>("--sizes", size);
  }
  std::vector<CommandCase> cases = CommandCases(ThreadCounts(request), request.cache);
  const size_t count = cases.size();
  std::erase_if(cases, [&](const CommandCase& each) { return !selection.Contains(each.name); });
  if (!cases.empty()) return cases;
  throw UsageError("--filter", "no command matches", fmt::format("part of one of {} names", count),
                   Quoted(request.filter));
}

// Where and how the cases run.
class Runner {
 public:
  explicit Runner(const CommandBenchRequest& request)
      : request_(request), directory_(request.directory) {}

  void WriteTraces(const std::vector<CommandCase>& cases) {
    for (const CommandCase& each : cases) {
      if (traces_.contains(each.shape)) continue;
      const std::string path = directory_.path() + "/" + std::string(NameOf(each.shape));
      traces_[each.shape] = WriteBenchTrace(path, each.shape, request_.mib);
    }
  }

  // Returns the entry of one repetition, which Google Benchmark's tools understand.
  Json Run(const CommandCase& each) const {
    const BenchTrace& trace = traces_.at(each.shape);
    const ReadTimes limit = Read(each);
    MeasuredChild run = {"", limit.wall_seconds, limit.cpu_seconds, 0};
    if (!each.is_limit()) {
      Prepare(each);
      run = MeasureChild(Command(each), {fmt::format("OMP_NUM_THREADS={}", each.threads)});
    }
    const double bytes = static_cast<double>(trace.bytes);
    const bool by_cpu = !UsesWallTime(each.name);
    const double fraction =
        by_cpu ? limit.cpu_seconds / run.cpu_seconds : limit.wall_seconds / run.wall_seconds;
    Json entry = {{"name", each.name},
                  {"run_name", each.name},
                  {"run_type", "iteration"},
                  {"threads", each.threads},
                  {"iterations", 1},
                  {"real_time", 1e9 * run.wall_seconds},
                  {"cpu_time", 1e9 * run.cpu_seconds},
                  {"time_unit", "ns"},
                  {"bytes_per_second", bytes / run.wall_seconds},
                  {"fraction_of_stream", fraction}};
    if (each.is_limit()) {
      entry["label"] = kLimitLabel;
    } else {
      entry["peak_bytes"] = run.peak_bytes;
    }
    return entry;
  }

 private:
  void Prepare(const CommandCase& each) const {
    if (request_.cache == FileCache::kCold) DropFromCache(traces_.at(each.shape).files);
  }

  ReadTimes Read(const CommandCase& each) const {
    Prepare(each);
    return ReadAndSum(traces_.at(each.shape).files, each.threads, request_.cache);
  }

  std::vector<std::string> Command(const CommandCase& each) const {
    const std::string output = directory_.path() + "/output";
    std::error_code ignored;
    std::filesystem::remove(output, ignored);
    std::vector<std::string> command = {request_.program};
    for (const std::string& argument : each.arguments) {
      command.push_back(argument == kTraceArgument    ? traces_.at(each.shape).directory
                        : argument == kOutputArgument ? output
                                                      : argument);
    }
    return command;
  }

  const CommandBenchRequest& request_;
  ScratchDirectory directory_;
  std::map<TraceShape, BenchTrace> traces_;
};

std::string DurationText(double seconds) {
  if (seconds < 100) return fmt::format("{:.0f} s", std::ceil(seconds));
  return fmt::format("{:.0f} min", std::ceil(seconds / 60));
}

// Runs each once, so that all files are where they will be, and tells how long the rest takes.
void WarmUp(const Runner& runner, const std::vector<CommandCase>& cases, uint64_t repetitions,
            const CommandBenchObserver& observer) {
  const auto begin = std::chrono::steady_clock::now();
  for (const CommandCase& each : cases) runner.Run(each);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  observer.announce(fmt::format("{} repetitions of {} commands take about {}", repetitions,
                                cases.size(),
                                DurationText(seconds * static_cast<double>(repetitions))));
}

// One list of entries for each case.
std::vector<Json> RunAll(const Runner& runner, const std::vector<CommandCase>& cases,
                         uint64_t repetitions, const CommandBenchObserver& observer) {
  std::vector<Json> entries(cases.size(), Json::array());
  std::vector<size_t> order(cases.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937 random(1);
  const uint64_t total = repetitions * cases.size();
  uint64_t done = 0;
  for (uint64_t repetition = 0; repetition < repetitions; ++repetition) {
    std::ranges::shuffle(order, random);
    for (const size_t i : order) {
      Json entry = runner.Run(cases[i]);
      entry["family_index"] = i;
      entry["repetitions"] = repetitions;
      entry["repetition_index"] = repetition;
      entries[i].push_back(std::move(entry));
      observer.progress(++done, total);
    }
  }
  return entries;
}

Json Block(const CommandBenchRequest& request, const Json& build) {
  Json block = {
      {"schema", kBenchSchema}, {"kind", NameOf(BenchKind::kTime)}, {"suite", kCommandSuite}};
  block.update(build);
  block["threads"] = fmt::format("{}", fmt::join(ThreadCounts(request), ","));
  block["trace_mib"] = std::to_string(request.mib);
  block["date"] = fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)));
  block["processes"] = request.repetitions;
  block["repetitions"] = request.repetitions;
  return block;
}

void CheckNumbers(const CommandBenchRequest& request) {
  if (request.repetitions == 0) throw UsageError("--repetitions", "zero", "1 or more");
  if (request.mib >= 1 && request.mib <= kMaxMib) return;
  throw UsageError("--trace-mib", "out of range", fmt::format("1 to {}", kMaxMib),
                   std::to_string(request.mib));
}

}  // namespace

Json BenchCommands(const CommandBenchRequest& request, const Json& build,
                   const CommandBenchObserver& observer) {
  CheckNumbers(request);
  const std::vector<CommandCase> cases = SelectCases(request);
  Runner runner(request);  // first, so that a bad directory fails at once
  observer.announce(fmt::format("writing traces of {} MiB each, and running {} commands once",
                                request.mib, cases.size()));
  runner.WriteTraces(cases);
  WarmUp(runner, cases, request.repetitions, observer);
  const std::vector<Json> entries = RunAll(runner, cases, request.repetitions, observer);
  Json document = {{"context", {{"num_cpus", std::thread::hardware_concurrency()}}},
                   {"dlsim", Block(request, build)},
                   {"benchmarks", Json::array()}};
  for (const Json& of_case : entries) {
    for (const Json& entry : of_case) document["benchmarks"].push_back(entry);
  }
  document["dlsim"]["scaling"] = ScalingJson(ScalingOf(document["benchmarks"]));
  return document;
}

}  // namespace dlsim::sim
