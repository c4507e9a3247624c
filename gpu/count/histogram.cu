// SPDX-License-Identifier: Apache-2.0
#include "dlsim/gpu/histogram.h"

#include <algorithm>
#include <string>
#include <utility>

#include "dlsim/error.h"
#include "gpu/count/count_kernels.h"
#include "histogram_sums.h"

namespace dlsim::gpu {
namespace {

// Tables whose rows are brought to the host at once.
constexpr size_t kTablesAtOnce = 64;

}  // namespace

struct Counter::State {
  State(const HistogramEdges& histogram_edges, const TensorList& list)
      : tensors(&list),
        keys(static_cast<uint32_t>(2 * histogram_edges.bin_count())),
        edges(histogram_edges),
        tables(list.tensor_count(), keys),
        rows(std::min(list.tensor_count(), kTablesAtOnce) * keys),
        row_used(1),
        answers(kTablesAtOnce),
        host_rows(rows.size()),
        host_answers(kTablesAtOnce) {}

  void TakeGroup(size_t first, std::span<HistogramSums> taken, Stream stream);

  const TensorList* tensors;
  uint32_t keys;
  CountEdges edges;
  CountMemory tables;
  DeviceBuffer<CountRow> rows;
  DeviceBuffer<uint64_t> row_used;
  DeviceBuffer<CountAnswer> answers;
  PinnedBuffer<CountRow> host_rows;
  PinnedBuffer<CountAnswer> host_answers;
  uint64_t counted = 0;  // values since Take
};

// Takes the tables from `first` on.
void Counter::State::TakeGroup(size_t first, std::span<HistogramSums> taken, Stream stream) {
  CheckCuda(cudaMemsetAsync(row_used.data(), 0, row_used.size_bytes(), stream), "cudaMemsetAsync");
  LaunchCompact(tables.From(first), static_cast<uint32_t>(taken.size()),
                {rows.data(), row_used.data()}, answers.data(), stream);
  CheckCuda(cudaMemcpyAsync(host_answers.data(), answers.data(), taken.size() * sizeof(CountAnswer),
                            cudaMemcpyDeviceToHost, stream),
            "cudaMemcpyAsync");
  CheckCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  uint64_t used = 0;
  for (size_t i = 0; i < taken.size(); ++i) used += host_answers.data()[i].row_count;
  if (used > 0) {
    CheckCuda(cudaMemcpyAsync(host_rows.data(), rows.data(), used * sizeof(CountRow),
                              cudaMemcpyDeviceToHost, stream),
              "cudaMemcpyAsync");
    CheckCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }
  for (size_t i = 0; i < taken.size(); ++i) {
    const CountAnswer& answer = host_answers.data()[i];
    AddAnswer(answer, host_rows.data() + answer.first_row, keys / 2, taken[i]);
  }
}

Counter::Counter(const HistogramEdges& edges, const TensorList& tensors) {
  const CurrentDevice current(tensors.device());
  state_ = std::make_unique<State>(edges, tensors);
}
Counter::Counter(Counter&&) noexcept = default;
Counter& Counter::operator=(Counter&&) noexcept = default;
Counter::~Counter() = default;

void Counter::Count(Stream stream) {
  State& s = *state_;
  const uint64_t elements = s.tensors->element_count();
  if (elements > kMostCounted - s.counted) {
    throw UsageError("Counter::Count", "too many values since Take",
                     "at most " + std::to_string(kMostCounted),
                     std::to_string(s.counted) + " and " + std::to_string(elements) + " more");
  }
  if (elements == 0) return;
  const CurrentDevice current(s.tensors->device());
  s.counted += elements;
  LaunchCount(s.tensors->pieces(), nullptr, s.tensors->piece_count(), s.edges.view(),
              s.tables.view(), stream);
}

std::vector<HistogramSums> Counter::Take(Stream stream) {
  State& s = *state_;
  std::vector<HistogramSums> taken(s.tensors->tensor_count());
  if (taken.empty()) return taken;
  const CurrentDevice current(s.tensors->device());
  const std::span<HistogramSums> all = taken;
  for (size_t first = 0; first < all.size(); first += kTablesAtOnce) {
    s.TakeGroup(first, all.subspan(first, std::min(kTablesAtOnce, all.size() - first)), stream);
  }
  s.counted = 0;
  return taken;
}

}  // namespace dlsim::gpu
