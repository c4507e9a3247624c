// SPDX-License-Identifier: Apache-2.0
// Results of benchmarks: the JSON of Google Benchmark, with a block "dlsim" that says what may be
// compared with what.
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/enum_names.h"
#include "sim/base/json_value.h"

namespace dlsim::sim {

inline constexpr std::string_view kBenchSchema = "dlsim.bench/1";

// Labels of what is no code of dlsim: a limit that it is held against, and other libraries. They
// are listed and not judged.
inline constexpr const char* kLimitLabel = "limit";
inline constexpr const char* kPeerLabel = "peer";

// What a measurement on a GPU says of it: its name, the version of its driver, and that of the
// compiler of its kernels.
inline constexpr std::array<const char*, 3> kGpuFields = {"gpu", "gpu_driver", "cuda_compiler"};

enum class BenchKind { kTime, kInstructions };

// The values of "kind".
constexpr auto EnumNames(BenchKind) {
  return std::to_array<EnumName<BenchKind>>(
      {{BenchKind::kTime, "time"}, {BenchKind::kInstructions, "instructions"}});
}

// One benchmark, with one value per repetition.
struct KernelSamples {
  std::string name;
  std::vector<double> cost;  // nanoseconds per iteration, or instructions
  std::vector<double> bytes_per_second, fraction_of_stream;
  bool is_judged = true;  // false for limits and peers
};

// Names and values of what must agree before two files may be compared.
using Identity = std::map<std::string, std::string>;

struct BenchmarkFile {
  std::string place;  // the path, printable
  BenchKind kind = BenchKind::kTime;
  bool has_dlsim_block = false;
  Identity identity;
  std::string cpu_model, processes;  // of the block "dlsim"; empty without
  std::vector<KernelSamples> kernels;
};

// Reads a file of `dlsim bench run`, of dlsim_bench or of any other Google Benchmark. Repetitions
// are gathered per benchmark; aggregates are ignored. The time of a kernel on one thread is its
// CPU time, which does not contain other processes; on several threads it is wall-clock time, and
// of gpu/... the device's time, which dlsim_bench gives instead of that.
// Throws InputError.
BenchmarkFile ReadBenchmarkFile(const std::string& path);

// The same for a document that is not in a file; `place` stands for it in messages.
BenchmarkFile ParseBenchmarks(const std::string& place, const Json& document);

// Returns the number of threads in "Encode/cb16/.../threads:2"; 1 where the name has none.
int ThreadsOf(std::string_view name);

// Whether wall-clock time stands for a benchmark of this name, and not CPU time: where it has
// several threads, is of a device, or waits for one, as commands do that read cold files.
bool UsesWallTime(std::string_view name);

// Throws Error (exit code 4) that names each field in which the two differ, with both values.
void RequireComparable(const BenchmarkFile& base, const BenchmarkFile& current);

}  // namespace dlsim::sim
