// SPDX-License-Identifier: Apache-2.0
// dlsim_bench: the kernels of dlsim under Google Benchmark.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/gpu_kernels.h"
#include "bench/kernels.h"
#include "dlsim/convert.h"
#include "dlsim/error.h"
#include "sim/base/parse.h"
#include "src/base/threads.h"
#include "src/codec/dispatch.h"

namespace dlsim::bench {
namespace {

constexpr const char* kHelp =
    R"(Usage: dlsim_bench [OPTION]...
Measures the kernels of dlsim, and streams that move as many bytes and compute nothing.

  --threads=N[,M]...        numbers of threads, each with arrays of its own (default 1)
  --targets=all|NAME[,NAME]...
                            SIMD targets (default: the best of this machine)
  --dram-mib=N              MiB of float32 of the size DRAM (default 512, or twice the last-level
                            cache if that is more)
  --device=cpu|cuda[:N]     whose kernels: the CPU's (default), or a CUDA device's

Names: Kernel/format/mode/target/size/data/threads:N, on a device gpu/Kernel/format/mode/DRAM/data
  size  L1 = 16 KiB, L2 = 256 KiB, DRAM = --dram-mib of float32
  data  normal = N(0,1); grad = N(0,1) * 2^U{-36..3}
Rates count the bytes that are read and written, by CPU time on one thread, else by the clock.

Options of Google Benchmark:
)";

constexpr size_t kDefaultDramMib = 512;
constexpr int64_t kMaxDramMib = int64_t{1} << 20, kMaxThreads = 1024;

struct Options {
  std::vector<int> threads = {1};
  std::vector<std::string> targets = {SupportedSimdTargets().front()};
  size_t dram_mib = std::max(kDefaultDramMib, LastLevelCacheBytes() >> 19);
  sim::DeviceChoice device;
};

std::vector<std::string> SplitAtCommas(std::string_view text) {
  std::vector<std::string> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(',', begin);
    parts.emplace_back(text.substr(begin, end - begin));
    if (end == text.npos) return parts;
    begin = end + 1;
  }
}

int64_t ParseBounded(const std::string& text, std::string_view place, int64_t most) {
  const int64_t value = sim::ParseInteger(text, place);
  if (value >= 1 && value <= most) return value;
  throw UsageError(place, "out of range", "1 to " + std::to_string(most), text);
}

std::vector<std::string> ParseTargets(const std::string& text) {
  if (text == "all") return SupportedSimdTargets();
  const std::vector<std::string> targets = SplitAtCommas(text);
  for (const std::string& name : targets) UseSimdTarget(name.empty() ? "''" : name);  // may throw
  return targets;
}

// Takes one of our own options; returns whether it was one.
bool Take(std::string_view argument, Options& options) {
  const size_t equals = argument.find('=');
  if (equals == argument.npos) return false;
  const std::string_view name = argument.substr(0, equals);
  const std::string value(argument.substr(equals + 1));
  if (name == "--threads") {
    options.threads.clear();
    for (const std::string& part : SplitAtCommas(value)) {
      options.threads.push_back(static_cast<int>(ParseBounded(part, name, kMaxThreads)));
    }
  } else if (name == "--targets") {
    options.targets = ParseTargets(value);
  } else if (name == "--dram-mib") {
    options.dram_mib = static_cast<size_t>(ParseBounded(value, name, kMaxDramMib));
  } else if (name == "--device") {
    options.device = sim::ParseDevice(value);
  } else {
    return false;
  }
  return true;
}

Options ParseOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (!Take(argument, options)) throw UsageError("", "unknown option", "", Quoted(argument));
  }
  return options;
}

// The name of the processor as Linux reports it.
std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != line.npos) return line.substr(colon + 2);
  }
  return "unknown";
}

// Benchmark threads start together; the first one selects for all.
void SelectTarget(const std::string& target) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (CurrentSimdTarget() != target) UseSimdTarget(target);
}

void Run(benchmark::State& state, const Kernel& kernel, const std::string& target, DataSet data,
         size_t elements) {
  SetWantedThreads(1);
  SelectTarget(target);
  const std::function<void()> call = kernel.bind(ArraysOf(elements, state.thread_index()), data);
  for (auto _ : state) {
    call();
    benchmark::ClobberMemory();
  }
  const auto items = state.iterations() * static_cast<int64_t>(elements);
  state.SetItemsProcessed(items);
  state.SetBytesProcessed(items * static_cast<int64_t>(kernel.bytes));
}

void Register(const Kernel& kernel, const std::string& target, const Options& options) {
  const std::pair<const char*, size_t> sizes[] = {
      {"L1", size_t{16} << 8}, {"L2", size_t{256} << 8}, {"DRAM", options.dram_mib << 18}};
  for (const auto& [size, elements] : sizes) {
    for (const DataSet data : kDataSets) {
      for (const int threads : options.threads) {
        std::string name = kernel.name + "/" + target + "/" + size + "/";
        name += DataSetName(data);
        auto* const registered = benchmark::RegisterBenchmark(
            name.c_str(), [=, elements = elements](benchmark::State& state) {
              Run(state, kernel, target, data, elements);
            });
        registered->Threads(threads);
        if (threads > 1) registered->UseRealTime();
      }
    }
  }
}

void RegisterAll(const Options& options) {
  benchmark::AddCustomContext("dlsim_version", DLSIM_VERSION);
  benchmark::AddCustomContext("compiler", DLSIM_COMPILER);
  benchmark::AddCustomContext("cpu_model", CpuModel());
  benchmark::AddCustomContext("dram_mib", std::to_string(options.dram_mib));
  if (options.device.kind == sim::DeviceChoice::Kind::kCuda) {
    return RegisterGpuKernels(options.device.index, options.dram_mib << 18);
  }
  for (const std::string& target : options.targets) {
    for (const auto& kernels : {Streams(), DlsimKernels()}) {
      for (const Kernel& kernel : kernels) Register(kernel, target, options);
    }
  }
}

int Fail(const char* message, ErrorKind kind) {
  std::fprintf(stderr, "dlsim_bench: %s\n", message);
  return static_cast<int>(kind);
}

int Main(int argc, char** argv) {
  try {
    benchmark::Initialize(&argc, argv, [] {
      std::fputs(kHelp, stdout);
      benchmark::PrintDefaultHelp();
    });
    RegisterAll(ParseOptions(argc, argv));
    const size_t count = benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return count > 0 ? 0 : Fail("--benchmark_filter: no such benchmark", ErrorKind::kUsage);
  } catch (const Error& error) {
    return Fail(error.what(), error.kind());
  } catch (const std::bad_alloc&) {
    return Fail("out of memory", ErrorKind::kInternal);
  } catch (const std::exception& error) {
    return Fail(error.what(), ErrorKind::kInternal);
  }
}

}  // namespace
}  // namespace dlsim::bench

int main(int argc, char** argv) { return dlsim::bench::Main(argc, argv); }
