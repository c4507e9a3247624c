// SPDX-License-Identifier: Apache-2.0
// dlsim_gpu_check: is every kernel right on this device, and how fast?
#include <chrono>
#include <cstdio>
#include <exception>

#include "dlsim/error.h"
#include "gpu/base/check_cuda.h"
#include "gpu/check/checks.h"

namespace dlsim::gpu_check {
namespace {

struct Group {
  const char* name;
  void (*run)(const Options&, Report&);
};

constexpr Group kGroups[] = {{"encode", SweepEncode},
                             {"large", CheckLargeTensor},
                             {"multi", TimeLaunches},
                             {"bench", TimeKernels}};

// Makes the device current; returns its name. Throws Error if it is not there.
std::string UseDevice(int device) {
  gpu::CheckCuda(cudaSetDevice(device), "cudaSetDevice(" + std::to_string(device) + ")");
  cudaDeviceProp properties = {};
  gpu::CheckCuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  gpu::CheckCuda(cudaFree(nullptr), "cudaFree");  // makes the context, or says why not
  return std::string(properties.name) + ", compute capability " + std::to_string(properties.major) +
         "." + std::to_string(properties.minor) + ", " +
         std::to_string(properties.totalGlobalMem >> 20) + " MiB";
}

int Run(const Options& options) {
  const std::string device = UseDevice(options.device);
  std::printf("device %d: %s\n", options.device, device.c_str());
  Report report;
  for (const Group& group : kGroups) {
    if (!options.Wants(group.name)) continue;
    const auto begin = std::chrono::steady_clock::now();
    group.run(options, report);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    std::printf("%s: %.1f s\n", group.name, taken.count());
    std::fflush(stdout);
  }
  report.Print();
  if (!options.json.empty()) report.WriteJson(options.json, device);
  return static_cast<int>(report.passed() ? 0 : static_cast<int>(ErrorKind::kCheckFailed));
}

int Main(int argc, char** argv) {
  try {
    const Options options = ParseOptions(std::span<const char* const>(argv + 1, argv + argc));
    if (!options.help) return Run(options);
    std::fputs(HelpText(), stdout);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "dlsim_gpu_check: %s\n", error.what());
    return static_cast<int>(error.kind());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dlsim_gpu_check: %s\n", Printable(error.what()).c_str());
    return static_cast<int>(ErrorKind::kInternal);
  }
}

}  // namespace
}  // namespace dlsim::gpu_check

int main(int argc, char** argv) { return dlsim::gpu_check::Main(argc, argv); }
