// SPDX-License-Identifier: Apache-2.0
// dlsim_bench: the benchmarks of dlsim.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "bench/gpu_kernels.h"
#include "bench/instructions.h"
#include "bench/kernels.h"
#include "bench/machine.h"
#include "bench/options.h"
#include "bench/peers.h"
#include "bench/runner.h"
#include "bench/streams.h"
#include "dlsim/error.h"
#include "dlsim/gpu/devices.h"
#include "dlsim/simd.h"
#include "src/base/cache_size.h"

namespace dlsim::bench {
namespace {

std::string Join(const auto& items, const auto& text) {
  std::string joined;
  for (const auto& item : items) joined += (joined.empty() ? "" : ",") + text(item);
  return joined;
}

void AddContext(const Options& options) {
  const auto same = [](const std::string& text) { return text; };
  benchmark::AddCustomContext("dlsim_version", DLSIM_VERSION);
  benchmark::AddCustomContext("simd_target", SupportedSimdTargets().front());
  benchmark::AddCustomContext("simd_targets", Join(SupportedSimdTargets(), same));
  benchmark::AddCustomContext("compiler", DLSIM_COMPILER);
  benchmark::AddCustomContext("compiler_flags", DLSIM_COMPILER_FLAGS);
  benchmark::AddCustomContext("cpu_model", CpuModel());
  benchmark::AddCustomContext("l2_bytes", std::to_string(CacheBytes(2)));
  benchmark::AddCustomContext("llc_bytes", std::to_string(CacheBytes(0)));
  benchmark::AddCustomContext(
      "threads", Join(options.threads, [](int count) { return std::to_string(count); }));
  benchmark::AddCustomContext("dram_mib", std::to_string(options.dram_mib));
}

void AddGpuContext(int index) {
  for (const gpu::DeviceInfo& device : gpu::Devices().devices) {
    if (device.index == index) benchmark::AddCustomContext("gpu", device.name);
  }
  benchmark::AddCustomContext("gpu_driver", GpuDriver());
  benchmark::AddCustomContext("cuda_compiler", DLSIM_CUDA_COMPILER);
}

std::vector<Workload> Catalog(const std::vector<std::string>& targets,
                              const std::vector<int>& threads) {
  std::vector<Workload> workloads;
  for (const auto& kernels : {Streams(), DlsimKernels(targets), Peers()}) {
    for (const Kernel& kernel : kernels) {
      for (Workload& workload : Expand(kernel, threads)) workloads.push_back(std::move(workload));
    }
  }
  return workloads;
}

// Throws Error (exit code 2) if nothing is left.
template <class Item, class Wanted>
std::vector<Item> Select(std::vector<Item> items, const std::string& option, const Wanted& wanted) {
  std::erase_if(items, [&](const Item& item) { return !wanted(item); });
  if (items.empty()) {
    throw UsageError(option, "no such benchmark", "one of --benchmark_list_tests");
  }
  return items;
}

std::vector<Workload> SelectForInstructions(const Options& options) {
  if (options.instructions != "all") {
    return Select(Catalog(SupportedSimdTargets(), options.threads), "--instructions",
                  [&](const auto& workload) { return workload.Name() == options.instructions; });
  }
  return Select(Catalog(options.targets, {1}), "--benchmark_filter", [&](const auto& workload) {
    return workload.kernel.owner == Owner::kDlsim && workload.size == Size::kL2 &&
           options.filter.Matches(workload.Name());
  });
}

void RunOnGpu(const Options& options, ArrayStore& store) {
  const int index = options.device.index;
  const std::vector<GpuBenchmark> benchmarks =
      Select(GpuBenchmarks(index, store), "--benchmark_filter",
             [&](const auto& gpu) { return options.filter.Matches(gpu.name); });
  if (options.lists_names) {
    for (const GpuBenchmark& gpu : benchmarks) std::printf("%s\n", gpu.name.c_str());
    return;
  }
  AddContext(options);
  AddGpuContext(index);
  RunGpuBenchmarks(benchmarks, options);
}

int Run(int argc, char** argv) {
  const Options options = ParseOptions(argc, argv);
  if (options.help) {
    std::fputs(HelpText().c_str(), stdout);
    return 0;
  }
  ArrayStore store(options.dram_mib);
  if (options.device.kind == DeviceChoice::Kind::kCuda) {
    RunOnGpu(options, store);
    return 0;
  }
  if (!options.instructions.empty()) {
    CountInstructions(SelectForInstructions(options), options, store);
    return 0;
  }
  const std::vector<Workload> workloads =
      Select(Catalog(options.targets, options.threads), "--benchmark_filter",
             [&](const auto& workload) { return options.filter.Matches(workload.Name()); });
  if (options.lists_names) {
    for (const Workload& workload : workloads) std::printf("%s\n", workload.Name().c_str());
    return 0;
  }
  AddContext(options);
  RunWorkloads(workloads, options, store);
  return 0;
}

int Fail(const char* message, ErrorKind kind) {
  std::fprintf(stderr, "dlsim_bench: %s\n", message);
  return static_cast<int>(kind);
}

int Main(int argc, char** argv) {
  try {
    return Run(argc, argv);
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
