// SPDX-License-Identifier: Apache-2.0
// What a benchmark runs: a kernel, and the arrays and threads on which it runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/data_sets.h"
#include "bench/timing.h"

namespace dlsim::bench {

// Bytes that an element moves. Two kernels with the same traffic have the same limit.
struct Traffic {
  size_t bytes_read = 0;
  size_t bytes_written = 0;

  friend bool operator==(const Traffic&, const Traffic&) = default;
};

inline constexpr Traffic kEncodeTraffic = {4, 2};
inline constexpr Traffic kDecodeTraffic = {2, 4};
inline constexpr Traffic kMeasureTraffic = {4, 0};
inline constexpr Traffic kEncodeBytesTraffic = {4, 1};
inline constexpr Traffic kDecodeBytesTraffic = {1, 4};

// Converts elements [begin, begin + count) of the arrays that it was bound to.
using RangeKernel = std::function<void(size_t begin, size_t count)>;

enum class Owner : uint8_t { kStream, kDlsim, kPeer };

// Who shares one large array out among threads: dlsim and oneDNN do it themselves.
enum class Sharing : uint8_t { kByCaller, kByKernel };

struct Kernel {
  Owner owner = Owner::kDlsim;
  Sharing sharing = Sharing::kByKernel;
  std::string kernel, format, mode, target;  // parts of the name
  Traffic traffic;
  std::function<RangeKernel(ArrayStore&, const Arrays&)> bind;
};

struct Workload {
  Kernel kernel;
  Size size = Size::kL1;
  DataSet data = DataSet::kAny;
  int threads = 1;

  // Kernel/format/mode/target/size/data/threads:N
  std::string Name() const;

  // In caches each benchmark thread has arrays of its own; in DRAM all threads share one array.
  int BenchmarkThreads() const { return size == Size::kDram ? 1 : threads; }
  int ThreadsPerArray() const { return size == Size::kDram ? threads : 1; }
  Clock SliceClock() const { return ThreadsPerArray() == 1 ? Clock::kThread : Clock::kWall; }
};

// Returns the kernel on every size, its data sets and each number of threads.
std::vector<Workload> Expand(const Kernel& kernel, const std::vector<int>& threads);

// Readies the calling thread for the workload: OpenMP threads and the SIMD target of its kernel.
void Activate(const Workload& workload);

// Returns the kernel on the arrays of one benchmark thread, shared out among ThreadsPerArray.
RangeKernel Bind(const Workload& workload, ArrayStore& store, int benchmark_thread);

// Returns the conversion of all elements of one benchmark thread, of which the first `again` are
// converted once more.
std::function<void()> WholeCall(const Workload& workload, size_t again, ArrayStore& store,
                                int benchmark_thread);

}  // namespace dlsim::bench
