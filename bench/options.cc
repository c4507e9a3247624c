// SPDX-License-Identifier: Apache-2.0
#include "bench/options.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string_view>

#include "dlsim/error.h"
#include "dlsim/simd.h"
#include "sim/base/number.h"
#include "src/base/cache_size.h"

namespace dlsim::bench {

using sim::ParseBool;
using sim::ParseDevice;
using sim::ParseInteger;
using sim::ParseNumber;
namespace {

constexpr size_t kDefaultDramMib = 512;
constexpr int64_t kMaxDramMib = int64_t{1} << 20;
constexpr int kMaxThreads = 1024;
// Whole vectors and whole blocks of random numbers.
constexpr size_t kPlantUnit = 64;

constexpr const char* kHelp =
    R"(Usage: dlsim_bench [OPTION]...
Measures the kernels of dlsim, the streams that limit them, and peers.

  --threads N[,M]...     numbers of threads (default 1)
  --targets best|all|NAME[,NAME]...
                         SIMD targets of dlsim's kernels (default best)
  --device cpu|cuda[:N]  whose kernels: the CPU's (default), or a CUDA device's
  --dram-mib N           MiB of float32 of the size DRAM; more than the last-level cache
                         (default 512, or twice that cache), any number with --device cuda
  --plant PERCENT[:FILTER]
                         slow dlsim's kernels down, those that match the filter: convert that
                         share of the elements again and report the same number of items
  --instructions NAME|all
                         for valgrind --tool=callgrind --instr-atstart=no: run the kernel once
                         with instrumentation, after a call without, and dump the counts under
                         its name; all = dlsim's kernels in L2 that --benchmark_filter selects

Options of Google Benchmark:
  --benchmark_filter=REGEX  --benchmark_list_tests  --benchmark_format=console|json
  --benchmark_out=FILE (JSON)  --benchmark_min_time=SECONDS  --benchmark_repetitions=N
  --benchmark_enable_random_interleaving=true  and others

Names: Kernel/format/mode/target/size/data/threads:N
  size  L1 = 16 KiB, L2 = 256 KiB, DRAM = --dram-mib of float32; the 16-bit side is half as large
  data  normal = N(0,1); grad = N(0,1) * 2^U{-36..3}
On a device: gpu/Kernel/format/mode/DRAM/data, timed by events on the device, one call at a time.
In L1 and L2 each thread converts arrays of its own; in DRAM all threads share one call.

Counters: items_per_second counts elements and bytes_per_second bytes read and written, over all of
a repetition and in wall-clock time. After it, slices of the kernel and of its limit alternate,
0.5 ms or one call long, for as long as the repetition took (in DRAM at least 0.5 s), at most 32
pairs, in CPU time where one thread converts an array. Their lower quartiles, which other programs
hardly disturb, give quartile_items_per_second of the kernel, stream_items_per_second of the limit
and fraction_of_stream, the quotient. The limit is the fastest of the plain and prefetching streams
of all vector widths with the same traffic, size and threads.

Exit codes: 0 ok, 2 usage, 70 internal error.
)";

// "all" is Google Benchmark's name for every benchmark.
NameFilter ParseFilter(std::string_view place, const std::string& text) {
  return NameFilter(place, text == "all" ? "" : text);
}

int64_t ParseBounded(const std::string& text, std::string_view place, int64_t min, int64_t max) {
  const int64_t value = ParseInteger(text, place);
  if (value >= min && value <= max) return value;
  throw UsageError(place, "out of range", std::to_string(min) + " to " + std::to_string(max), text);
}

std::vector<int> ParseThreads(const std::string& text) {
#ifdef _OPENMP
  return ParseThreadCounts(text, kMaxThreads);
#else
  return ParseThreadCounts(text, 1);  // nothing shares an array out
#endif
}

std::vector<std::string> ParseTargets(const std::string& text) {
  std::vector<std::string> targets = SupportedSimdTargets();
  if (text == "all") return targets;
  if (text == "best") return {targets.front()};
  std::vector<std::string> chosen = SplitAtCommas(text);
  for (const std::string& name : chosen) {
    UseSimdTarget(name.empty() ? "''" : name);  // throws for unknown ones
    if (std::ranges::count(chosen, name) > 1) {
      throw UsageError("--targets", "given twice", "different targets", Quoted(name));
    }
  }
  UseSimdTarget("");
  return chosen;
}

Plant ParsePlant(const std::string& text) {
  const size_t colon = text.find(':');
  Plant plant;
  plant.percent = ParseNumber(text.substr(0, colon), "--plant");
  if (!(plant.percent >= 0 && plant.percent <= 1000)) {
    throw UsageError("--plant", "out of range", "0 to 1000", text);
  }
  if (colon != std::string::npos) plant.filter = ParseFilter("--plant", text.substr(colon + 1));
  return plant;
}

// Arrays that fit in a cache would not measure memory.
void RequireLargeArrays(const Options& options) {
  const size_t cache = CacheBytes(0) >> 20;
  if (options.device.kind == DeviceChoice::Kind::kCuda || options.dram_mib > cache) return;
  throw UsageError("--dram-mib", "out of range",
                   std::to_string(cache + 1) + " to " + std::to_string(kMaxDramMib),
                   std::to_string(options.dram_mib));
}

bool ParseFormatOption(const std::string& text, std::string_view place, bool takes_console) {
  if (text == "json") return true;
  if (text == "console" && takes_console) return false;
  throw UsageError(place, "unknown format", takes_console ? "console or json" : "json",
                   Quoted(text));
}

using Setter = std::function<void(const std::string&)>;

// The options with a value that dlsim_bench takes itself.
std::map<std::string, Setter> Setters(Options& options) {
  return {
      {"--threads", [&](const auto& text) { options.threads = ParseThreads(text); }},
      {"--targets", [&](const auto& text) { options.targets = ParseTargets(text); }},
      {"--device", [&](const auto& text) { options.device = ParseDevice(text); }},
      {"--dram-mib",
       [&](const auto& text) {
         options.dram_mib = static_cast<size_t>(ParseBounded(text, "--dram-mib", 1, kMaxDramMib));
       }},
      {"--plant", [&](const auto& text) { options.plant = ParsePlant(text); }},
      {"--instructions", [&](const auto& text) { options.instructions = text; }},
      {"--benchmark_filter",
       [&](const auto& text) { options.filter = ParseFilter("--benchmark_filter", text); }},
      {"--benchmark_list_tests",
       [&](const auto& text) { options.lists_names = ParseBool(text, "--benchmark_list_tests"); }},
      {"--benchmark_format",
       [&](const auto& text) {
         options.prints_json = ParseFormatOption(text, "--benchmark_format", true);
       }},
      {"--benchmark_out_format",
       [](const auto& text) { ParseFormatOption(text, "--benchmark_out_format", false); }},
  };
}

}  // namespace

size_t Plant::Extra(const Workload& workload, size_t elements) const {
  if (percent == 0 || workload.kernel.owner != Owner::kDlsim) return 0;
  if (!filter.Matches(workload.Name())) return 0;
  const auto extra = static_cast<size_t>(static_cast<double>(elements) * percent / 100);
  return (extra + kPlantUnit - 1) / kPlantUnit * kPlantUnit;
}

Options ParseOptions(int argc, char** argv) {
  Options options;
  options.targets = {SupportedSimdTargets().front()};
  options.dram_mib = std::max(kDefaultDramMib, CacheBytes(0) >> 19);
  options.remaining = {argv[0]};
  const std::map<std::string, Setter> setters = Setters(options);
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const auto setter = setters.find(name);
    if (name == "--help" || name == "-h") options.help = true;
    options.writes_file = options.writes_file || name == "--benchmark_out";
    if (setter == setters.end()) {
      options.remaining.push_back(argument);
    } else if (equals != std::string::npos) {
      setter->second(argument.substr(equals + 1));
    } else if (name == "--benchmark_list_tests") {
      options.lists_names = true;
    } else if (i + 1 < argc) {
      setter->second(argv[++i]);
    } else {
      throw UsageError(name, "no value", "one after it");
    }
  }
  RequireLargeArrays(options);
  return options;
}

std::string HelpText() { return kHelp; }

}  // namespace dlsim::bench
