// SPDX-License-Identifier: Apache-2.0
#include "gpu/device/count_work.h"

#include <algorithm>

#include "src/histogram/histogram_sums.h"

namespace dlsim::gpu {
namespace {

// What a counter keeps of a bin of a piece, about.
constexpr size_t kBytesPerBin = 2 * sizeof(HistogramSums::Bin);

}  // namespace

CountWork::CountWork(int device, SlotRing& slots, CounterStore& counters, const StepWork& work,
                     const HistogramEdges& edges, std::span<HistogramSums> sums)
    : device_(device),
      counters_(counters),
      slots_(slots),
      work_(work),
      sums_(sums),
      table_bytes_(edges.bin_count() * kBytesPerBin) {
  counters_.Use(edges);
}

// What counters hold of a step that failed must not come into the next one.
CountWork::~CountWork() {
  if (finished_) return;
  slots_.get().Abandon();
  counters_.Clear();
}

void CountWork::Add(std::span<const Block> blocks) {
  const CurrentDevice current(device_);
  finished_ = false;
  const BatchLimits limits = {.output_bytes = size_t{64} << 20};
  while (!blocks.empty()) {
    Send(TakeBatch(work_, blocks, work_.micro_steps.size() * table_bytes_, limits));
  }
}

void CountWork::Finish() {
  const CurrentDevice current(device_);
  slots_.get().Finish();
  finished_ = true;
}

// Writes those of all parts that are there, by tensor, then part, as counters need them.
void CountWork::WritePieces(const StepBatch& batch, const std::byte* staged, Piece* to) const {
  const size_t part_count = work_.micro_steps.size();
  for (size_t begin = 0, end; begin < batch.blocks.size(); begin = end) {
    const size_t tensor = batch.blocks[begin].tensor;
    for (end = begin; end < batch.blocks.size() && batch.blocks[end].tensor == tensor;) ++end;
    for (size_t part = 0; part < part_count; ++part) {
      for (size_t b = begin; b < end; ++b) {
        const StagedPart& of_block = batch.parts[b * part_count + part];
        if (of_block.count == 0) continue;
        *to = PieceOf(batch.blocks[b], of_block, staged);
        (to++)->tensor = static_cast<uint32_t>(tensor * part_count + part);
      }
    }
  }
}

// The input is the pieces, then their elements.
void CountWork::Send(const StepBatch& batch) {
  const auto is_there = [](const StagedPart& part) { return part.count > 0; };
  const size_t piece_count =
      static_cast<size_t>(std::count_if(batch.parts.begin(), batch.parts.end(), is_there));
  if (piece_count == 0) return;
  SlotRing& slots = slots_.get();
  const size_t elements = AlignStaged(piece_count * sizeof(Piece));
  Slot& slot = slots.Next(elements + batch.staged_bytes, 0);
  WaveCounter& counter = counters_.Of(slots.IndexOf(slot), piece_count);
  Piece* const pieces = reinterpret_cast<Piece*>(slot.host_input());
  WritePieces(batch, slot.device_input() + elements, pieces);
  StageBlocks(work_, batch.blocks, batch.parts, slot.host_input() + elements);
  slot.Send(elements + batch.staged_bytes);
  counter.Launch(reinterpret_cast<const Piece*>(slot.device_input()), {pieces, piece_count},
                 slot.stream());
  slots.Submit(slot, [&counter, this] { counter.Collect(sums_); });
}

}  // namespace dlsim::gpu
