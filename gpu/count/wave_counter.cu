// SPDX-License-Identifier: Apache-2.0
#include "gpu/count/wave_counter.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "dlsim/measure.h"
#include "gpu/count/count_kernels.h"
#include "src/base/check.h"
#include "src/histogram/histogram_sums.h"

namespace dlsim::gpu {
namespace {

// Tables of the tensors that are counted at once, so that most of them stay in the L2 cache.
constexpr size_t kTableBytes = size_t{64} << 20;
// Rows that are copied before their number is known.
constexpr uint64_t kEagerRowsPerTable = 512;

size_t TablesAtOnce(uint32_t keys, size_t most_pieces) {
  const size_t fit = std::max<size_t>(kTableBytes / (keys * CountTables::kBytesPerKey), 1);
  return std::min(fit, most_pieces);
}

}  // namespace

struct WaveCounter::State {
  State(const HistogramEdges& histogram_edges, size_t pieces)
      : most_pieces(pieces),
        keys(static_cast<uint32_t>(2 * histogram_edges.bin_count())),
        edges(histogram_edges),
        tables(TablesAtOnce(keys, most_pieces), keys),
        rows(most_pieces * std::min<uint64_t>(keys, kBlockElements)),
        row_used(1),
        answers(most_pieces),
        device_table_of_piece(most_pieces),
        host_rows(std::min<size_t>(rows.size(), most_pieces * kEagerRowsPerTable)),
        host_answers(most_pieces),
        table_of_piece(most_pieces) {}

  struct Run {
    uint32_t tensor = 0;
    uint64_t elements = 0;
  };

  size_t AddRuns(std::span<const Piece> pieces, size_t first);

  size_t most_pieces;
  uint32_t keys;
  CountEdges edges;
  CountMemory tables;
  DeviceBuffer<CountRow> rows;
  DeviceBuffer<uint64_t> row_used;
  DeviceBuffer<CountAnswer> answers;
  DeviceBuffer<uint32_t> device_table_of_piece;
  PinnedBuffer<CountRow> host_rows;
  PinnedBuffer<CountAnswer> host_answers;
  PinnedBuffer<uint32_t> table_of_piece;
  OwnedStream copies;  // of rows that were not copied early
  // Since the last Collect:
  size_t piece_count = 0;
  uint64_t most_rows = 0, copied_rows = 0;
  std::vector<Run> runs;  // of pieces of one tensor, as the answers
};

// Notes the pieces from `first` on that are counted at once, and returns their number.
size_t WaveCounter::State::AddRuns(std::span<const Piece> pieces, size_t first) {
  const size_t first_run = runs.size();
  size_t i = first;
  for (; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (i == first || piece.tensor != pieces[i - 1].tensor) {
      if (runs.size() - first_run == tables.table_count()) break;
      runs.push_back({piece.tensor, 0});
    }
    runs.back().elements += piece.count;
    table_of_piece.data()[piece_count + i] = static_cast<uint32_t>(runs.size() - 1 - first_run);
  }
  for (size_t run = first_run; run < runs.size(); ++run) {
    most_rows += std::min<uint64_t>(runs[run].elements, keys);
  }
  return i - first;
}

WaveCounter::WaveCounter(const HistogramEdges& edges, size_t most_pieces)
    : state_(std::make_unique<State>(edges, most_pieces)) {}
WaveCounter::WaveCounter(WaveCounter&&) noexcept = default;
WaveCounter& WaveCounter::operator=(WaveCounter&&) noexcept = default;
WaveCounter::~WaveCounter() = default;

void WaveCounter::Launch(const Piece* on_device, std::span<const Piece> on_host, Stream stream) {
  State& s = *state_;
  if (on_host.empty()) return;
  DLSIM_CHECK(on_host.size() <= s.most_pieces - s.piece_count);
  if (s.piece_count == 0) {
    CheckCuda(cudaMemsetAsync(s.row_used.data(), 0, s.row_used.size_bytes(), stream),
              "cudaMemsetAsync");
  }
  const size_t first_answer = s.runs.size();
  struct Group {
    size_t first_piece, pieces, first_run, runs;
  };
  std::vector<Group> groups;
  for (size_t first = 0; first < on_host.size();) {
    const size_t first_run = s.runs.size();
    const size_t count = s.AddRuns(on_host, first);
    groups.push_back({first, count, first_run, s.runs.size() - first_run});
    first += count;
  }
  uint32_t* tables_of = s.device_table_of_piece.data() + s.piece_count;
  CheckCuda(cudaMemcpyAsync(tables_of, s.table_of_piece.data() + s.piece_count,
                            on_host.size() * sizeof(uint32_t), cudaMemcpyHostToDevice, stream),
            "cudaMemcpyAsync");
  for (const Group& group : groups) {
    LaunchCount(on_device + group.first_piece, tables_of + group.first_piece,
                static_cast<uint32_t>(group.pieces), s.edges.view(), s.tables.view(), stream);
    LaunchCompact(s.tables.view(), static_cast<uint32_t>(group.runs),
                  {s.rows.data(), s.row_used.data()}, s.answers.data() + group.first_run, stream);
  }
  s.piece_count += on_host.size();
  CheckCuda(cudaMemcpyAsync(s.host_answers.data() + first_answer, s.answers.data() + first_answer,
                            (s.runs.size() - first_answer) * sizeof(CountAnswer),
                            cudaMemcpyDeviceToHost, stream),
            "cudaMemcpyAsync");
  s.copied_rows =
      std::min<uint64_t>({s.most_rows, s.runs.size() * kEagerRowsPerTable, s.host_rows.size()});
  CheckCuda(cudaMemcpyAsync(s.host_rows.data(), s.rows.data(), s.copied_rows * sizeof(CountRow),
                            cudaMemcpyDeviceToHost, stream),
            "cudaMemcpyAsync");
}

void WaveCounter::Collect(std::span<HistogramSums> sums) {
  State& s = *state_;
  std::vector<CountRow> late;
  for (size_t run = 0; run < s.runs.size(); ++run) {
    const CountAnswer& answer = s.host_answers.data()[run];
    const CountRow* rows = s.host_rows.data() + answer.first_row;
    if (answer.first_row + answer.row_count > s.copied_rows) {
      late.resize(answer.row_count);
      CheckCuda(
          cudaMemcpyAsync(late.data(), s.rows.data() + answer.first_row,
                          late.size() * sizeof(CountRow), cudaMemcpyDeviceToHost, s.copies.get()),
          "cudaMemcpyAsync");
      CheckCuda(cudaStreamSynchronize(s.copies.get()), "cudaStreamSynchronize");
      rows = late.data();
    }
    AddAnswer(answer, rows, s.keys / 2, sums[s.runs[run].tensor]);
  }
  s.piece_count = 0;
  s.most_rows = s.copied_rows = 0;
  s.runs.clear();
}

}  // namespace dlsim::gpu
