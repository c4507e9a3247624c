// SPDX-License-Identifier: Apache-2.0
#include "bench/workload.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include <benchmark/benchmark.h>

#include <algorithm>
#include <mutex>

#include "dlsim/simd.h"

namespace dlsim::bench {
namespace {

// Shares are whole pages of both sides, so that threads never write to one cache line.
constexpr size_t kShareUnit = 4096;

RangeKernel ShareOut(RangeKernel kernel, int threads) {
  return [kernel = std::move(kernel), threads](size_t begin, size_t count) {
    const size_t workers = static_cast<size_t>(threads);
    const size_t units = (count + kShareUnit - 1) / kShareUnit;
    const size_t share = (units + workers - 1) / workers * kShareUnit;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int thread = 0; thread < threads; ++thread) {
      const size_t from = std::min(static_cast<size_t>(thread) * share, count);
      kernel(begin + from, std::min(share, count - from));
    }
  };
}

}  // namespace

std::string Workload::Name() const {
  std::string name;
  for (const std::string& part : {kernel.kernel, kernel.format, kernel.mode, kernel.target}) {
    name += part + "/";
  }
  return name + SizeName(size) + "/" + DataSetName(data) + "/threads:" + std::to_string(threads);
}

std::vector<Workload> Expand(const Kernel& kernel, const std::vector<int>& threads) {
  std::vector<DataSet> data_sets = {DataSet::kNormal, DataSet::kGrad};
  if (kernel.owner == Owner::kStream) data_sets = {DataSet::kAny};
  std::vector<Workload> workloads;
  for (const Size size : {Size::kL1, Size::kL2, Size::kDram}) {
    for (const DataSet data : data_sets) {
      for (const int count : threads) workloads.push_back({kernel, size, data, count});
    }
  }
  return workloads;
}

void Activate(const Workload& workload) {
#ifdef _OPENMP
  omp_set_num_threads(workload.ThreadsPerArray());
#endif
  if (workload.kernel.owner != Owner::kDlsim) return;
  // Benchmark threads start together; the first one selects for all.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (CurrentSimdTarget() != workload.kernel.target) UseSimdTarget(workload.kernel.target);
}

RangeKernel Bind(const Workload& workload, ArrayStore& store, int benchmark_thread) {
  const Arrays arrays = store.Get(workload.size, workload.data, benchmark_thread);
  RangeKernel kernel = workload.kernel.bind(store, arrays);
  const int threads = workload.ThreadsPerArray();
  if (threads == 1 || workload.kernel.sharing == Sharing::kByKernel) return kernel;
  return ShareOut(std::move(kernel), threads);
}

std::function<void()> WholeCall(const Workload& workload, size_t again, ArrayStore& store,
                                int benchmark_thread) {
  const RangeKernel kernel = Bind(workload, store, benchmark_thread);
  const size_t elements = store.Elements(workload.size);
  return [=] {
    kernel(0, elements);
    for (size_t left = again; left > 0; left -= std::min(left, elements)) {
      kernel(0, std::min(left, elements));
    }
    benchmark::ClobberMemory();
  };
}

}  // namespace dlsim::bench
