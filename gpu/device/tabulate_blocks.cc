// SPDX-License-Identifier: Apache-2.0
#include "gpu/device/tabulate_blocks.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "dlsim/gpu/tabulate.h"
#include "gpu/base/piece.h"
#include "gpu/base/pointers.h"
#include "gpu/tabulate/tabulate.h"
#include "src/base/parallel.h"
#include "src/measure/load_floats.h"

namespace dlsim::gpu {
namespace {

constexpr const char* kTabulateCall = "dlsim::gpu::Tabulate";

// What a batch may need; a single block may need more. Sums of a table take 104 KB.
constexpr size_t kMostStagedBytes = size_t{8} << 20, kMostTables = 64;
constexpr uint64_t kMostElements = uint64_t{1} << 28;

constexpr size_t Aligned(size_t bytes) { return (bytes + 15) / 16 * 16; }

// Blocks that go to the device together. Sent are the pieces, by table, then values of the host.
struct Batch {
  std::span<const DeviceBlock> blocks;
  std::vector<size_t> tables;                    // that it has sums of
  std::vector<std::pair<Piece, size_t>> pieces;  // and where values of the host are staged
  std::vector<std::vector<size_t>> staged;       // [block][piece]: from where on
  size_t staged_bytes = 0;
};

// Takes as many of the first blocks as a batch may have.
Batch TakeBatch(std::span<const DeviceBlock>& blocks) {
  Batch batch;
  std::map<size_t, uint32_t> indices;  // of tables
  uint64_t elements = 0;
  size_t count = 0;
  for (; count < blocks.size(); ++count) {
    const bool full = batch.staged_bytes >= kMostStagedBytes || elements >= kMostElements ||
                      indices.size() >= kMostTables;
    if (full) break;
    std::vector<size_t>& staged = batch.staged.emplace_back();
    for (const DevicePiece& from : blocks[count].pieces) {
      staged.push_back(batch.staged_bytes);
      if (from.count == 0) continue;
      elements += from.count;
      const auto [index, is_new] =
          indices.try_emplace(from.table, static_cast<uint32_t>(indices.size()));
      if (is_new) batch.tables.push_back(from.table);
      Piece piece;
      piece.values = from.on_device;
      piece.count = from.count;
      piece.tensor = index->second;
      piece.dtype = from.dtype;
      piece.inverse_grad_scale = from.grad_scale == 1.0f ? 1.0f : 1.0f / from.grad_scale;
      batch.pieces.emplace_back(piece, batch.staged_bytes);
      if (from.on_device == nullptr) batch.staged_bytes += Aligned(from.count * sizeof(float));
    }
  }
  batch.blocks = blocks.first(count);
  blocks = blocks.subspan(count);
  std::ranges::stable_sort(batch.pieces, {}, [](const auto& piece) { return piece.first.tensor; });
  return batch;
}

void Fill(const Batch& batch, std::byte* to) {
  ParallelFor(batch.blocks.size(), [&](size_t b) {
    const DeviceBlock& block = batch.blocks[b];
    if (!block.fill) return;
    std::vector<std::span<float>> places;
    for (size_t i = 0; i < block.pieces.size(); ++i) {
      const DevicePiece& piece = block.pieces[i];
      const size_t count = piece.on_device == nullptr ? piece.count : 0;
      places.push_back({reinterpret_cast<float*>(to + batch.staged[b][i]), count});
    }
    block.fill(places);
  });
}

}  // namespace

void TabulateBlocks(SlotRing& slots, std::span<const DeviceBlock> blocks, float scale,
                    const ComputeDevice::TakeSums& take) {
  const SlotUse use(slots);
  while (!blocks.empty()) {
    const Batch batch = TakeBatch(blocks);
    if (batch.pieces.empty()) continue;
    const size_t values = Aligned(batch.pieces.size() * sizeof(Piece));
    const size_t input_bytes = values + batch.staged_bytes;
    const size_t output_bytes = batch.tables.size() * sizeof(TableSums);
    Slot& slot = slots.Next(input_bytes, output_bytes);
    auto* const pieces = reinterpret_cast<Piece*>(slot.host_input());
    for (size_t i = 0; i < batch.pieces.size(); ++i) {
      const auto& [piece, staged] = batch.pieces[i];
      pieces[i] = piece;
      if (piece.values == nullptr) pieces[i].values = slot.device_input() + values + staged;
    }
    Fill(batch, slot.host_input() + values);
    slot.Send(input_bytes);
    CheckCuda(cudaMemsetAsync(slot.device_output(), 0, output_bytes, slot.stream()),
              "cudaMemsetAsync");
    LaunchTabulate(reinterpret_cast<const Piece*>(slot.device_input()),
                   static_cast<uint32_t>(batch.pieces.size()), scale,
                   reinterpret_cast<TableSums*>(slot.device_output()), slot.stream());
    slot.Fetch(output_bytes);
    slots.Submit(slot, [&take, tables = batch.tables,
                        sums = reinterpret_cast<TableSums*>(slot.host_output())] {
      for (size_t i = 0; i < tables.size(); ++i) take(tables[i], sums[i]);
    });
  }
  slots.Finish();
}

std::vector<TensorTable> Tabulate(std::span<const DeviceTensor> tensors, Stream stream) {
  std::vector<TensorTable> tables(tensors.size());
  std::vector<DeviceBlock> blocks;
  CheckCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  for (size_t t = 0; t < tensors.size(); ++t) {
    const DeviceTensor& tensor = tensors[t];
    if (tensor.elements == 0) continue;
    const size_t size = DTypeSize(tensor.dtype);
    CheckCurrentDevice(kTabulateCall, CheckPointer(kTabulateCall, "values", tensor.values, size));
    const auto* const values = static_cast<const std::byte*>(tensor.values);
    if (tensor.elements <= TensorTable::kMostValues) {
      std::vector<std::byte> bytes(tensor.elements * size);
      CheckCuda(cudaMemcpy(bytes.data(), values, bytes.size(), cudaMemcpyDeviceToHost),
                kTabulateCall);
      std::vector<float> floats(tensor.elements);
      LoadFloats(tensor.dtype, bytes.data(), tensor.grad_scale, floats);
      tables[t] = dlsim::Tabulate(floats);
      continue;
    }
    for (uint64_t begin = 0; begin < tensor.elements; begin += kBlockElements) {
      DevicePiece piece = {t, 0, values + begin * size, tensor.dtype, tensor.grad_scale};
      piece.count =
          static_cast<uint32_t>(std::min<uint64_t>(kBlockElements, tensor.elements - begin));
      blocks.push_back({{piece}});
    }
  }
  SlotRing slots;
  TabulateBlocks(slots, blocks, 1.0f,
                 [&](size_t t, TableSums& sums) { tables[t].Add(TableOf(sums)); });
  return tables;
}

}  // namespace dlsim::gpu
