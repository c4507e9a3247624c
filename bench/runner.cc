// SPDX-License-Identifier: Apache-2.0
#include "bench/runner.h"

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>

#include "bench/streams.h"
#include "bench/timing.h"
#include "dlsim/error.h"

namespace dlsim::bench {
namespace {

// A call in DRAM lasts long enough to be disturbed: several pairs even in short repetitions.
constexpr double kMinDramSeconds = 0.5;

// What comparisons do not judge has a label: it is no code of dlsim.
const char* LabelOf(Owner owner) {
  switch (owner) {
    case Owner::kStream:
      return "limit";
    case Owner::kPeer:
      return "peer";
    case Owner::kDlsim:
      break;
  }
  return "";
}

void RunWorkload(benchmark::State& state, const Workload& workload, const Options& options,
                 ArrayStore& store) {
  const int thread = state.thread_index();
  Activate(workload);
  const size_t elements = store.Elements(workload.size);
  const size_t again = options.plant.Extra(workload, elements);
  const std::function<void()> call = WholeCall(workload, again, store, thread);
  const double begin = Now(Clock::kWall);
  for (auto _ : state) call();
  const double elapsed = Now(Clock::kWall) - begin;
  state.SetLabel(LabelOf(workload.kernel.owner));
  const Traffic& traffic = workload.kernel.traffic;
  const auto items = state.iterations() * static_cast<int64_t>(elements);
  state.SetItemsProcessed(items);
  state.SetBytesProcessed(items * static_cast<int64_t>(traffic.bytes_read + traffic.bytes_written));
  const Workload& limit = LimitOf(traffic, workload.size, workload.threads, store);
  const double budget = workload.size == Size::kDram ? std::max(elapsed, kMinDramSeconds) : elapsed;
  const double seconds_per_call = elapsed / static_cast<double>(state.iterations());
  const PairedSeconds seconds =
      TimePaired(Slice(workload.SliceClock(), call, seconds_per_call),
                 Slice(workload.SliceClock(), WholeCall(limit, 0, store, thread)), budget);
  const double count = static_cast<double>(elements);
  state.counters["quartile_items_per_second"] = count / seconds.kernel;
  state.counters["stream_items_per_second"] = count / seconds.limit;
  state.counters["fraction_of_stream"] =
      benchmark::Counter(seconds.limit / seconds.kernel, benchmark::Counter::kAvgThreads);
}

// Google Benchmark adds how it took the time to each name, and counts only its own threads.
template <class Reporter>
class OwnNames : public Reporter {
 public:
  template <class... Settings>
  explicit OwnNames(const std::map<std::string, int>& threads, Settings... settings)
      : Reporter(settings...), threads_(threads) {}

  void ReportRuns(const std::vector<benchmark::BenchmarkReporter::Run>& runs) override {
    std::vector<benchmark::BenchmarkReporter::Run> renamed = runs;
    for (auto& run : renamed) {
      run.run_name.time_type.clear();
      run.run_name.threads.clear();
      run.threads = threads_.at(run.run_name.function_name);
    }
    Reporter::ReportRuns(renamed);
  }

 private:
  const std::map<std::string, int>& threads_;
};

std::unique_ptr<benchmark::BenchmarkReporter> MakeDisplay(
    const Options& options, const std::map<std::string, int>& threads) {
  using benchmark::ConsoleReporter;
  if (options.prints_json) return std::make_unique<OwnNames<benchmark::JSONReporter>>(threads);
  const bool colors = isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
  return std::make_unique<OwnNames<ConsoleReporter>>(
      threads, colors ? ConsoleReporter::OO_ColorTabular : ConsoleReporter::OO_Tabular);
}

// Google Benchmark keeps a pointer to the program's name.
void Initialize(std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  int argc = static_cast<int>(argv.size());
  benchmark::Initialize(&argc, argv.data());
  if (argc > 1) {
    throw UsageError("", "unknown option", "one of those of --help", Quoted(argv[1]));
  }
}

// Runs what is registered, each with its number of threads.
void RunRegistered(const Options& options, const std::map<std::string, int>& threads) {
  const auto display = MakeDisplay(options, threads);
  OwnNames<benchmark::JSONReporter> file(threads);
  benchmark::RunSpecifiedBenchmarks(display.get(), options.writes_file ? &file : nullptr, "all");
  benchmark::Shutdown();
}

}  // namespace

void RunWorkloads(const std::vector<Workload>& workloads, const Options& options,
                  ArrayStore& store) {
  std::vector<std::string> arguments = options.remaining;
  Initialize(arguments);
  std::map<std::string, int> threads;
  for (const Workload& workload : workloads) {
    const std::string name = workload.Name();
    threads[name] = workload.threads;
    benchmark::RegisterBenchmark(
        name.c_str(),
        [&](benchmark::State& state) { RunWorkload(state, workload, options, store); })
        ->Threads(workload.BenchmarkThreads())
        ->UseRealTime();
  }
  RunRegistered(options, threads);
}

void RunGpuBenchmarks(const std::vector<GpuBenchmark>& benchmarks, const Options& options) {
  std::vector<std::string> arguments = options.remaining;
  Initialize(arguments);
  std::map<std::string, int> threads;
  for (const GpuBenchmark& gpu : benchmarks) {
    threads[gpu.name] = 1;
    benchmark::RegisterBenchmark(gpu.name.c_str(), gpu.run)->UseManualTime();
  }
  RunRegistered(options, threads);
}

}  // namespace dlsim::bench
