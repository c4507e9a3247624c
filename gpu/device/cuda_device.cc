// SPDX-License-Identifier: Apache-2.0
#include "gpu/device/cuda_device.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "dlsim/gpu.h"
#include "gpu/base/cuda.h"
#include "gpu/base/device_code.h"
#include "src/base/parallel.h"
#include "src/measure/step_blocks.h"

namespace dlsim::gpu {
namespace {

constexpr size_t kSmallestBuffer = size_t{1} << 16;

// Powers of two, so that memory grows a few times and no more.
template <class Buffer>
void Grow(size_t bytes, Buffer& buffer) {
  if (bytes <= buffer.size()) return;
  buffer = {};  // first, so that both need not fit
  buffer = Buffer(std::bit_ceil(std::max(bytes, kSmallestBuffer)));
}

}  // namespace

void SlotRing::Slot::Send(size_t bytes) {
  CheckCuda(cudaMemcpyAsync(device_input.data(), host_input.data(), bytes, cudaMemcpyHostToDevice,
                            stream.get()),
            "cudaMemcpyAsync to the device");
}

void SlotRing::Slot::Fetch(size_t bytes) {
  CheckCuda(cudaMemcpyAsync(host_output.data(), device_output.data(), bytes, cudaMemcpyDeviceToHost,
                            stream.get()),
            "cudaMemcpyAsync from the device");
}

void SlotRing::Run(const std::function<void()>& work) {
  try {
    work();
    for (size_t i = 0; i < slots_.size(); ++i) Collect(slots_[(next_ + i) % slots_.size()]);
  } catch (...) {
    Abandon();
    throw;
  }
}

SlotRing::Slot& SlotRing::Next(size_t input_bytes, size_t output_bytes) {
  Slot& slot = slots_[next_];
  Collect(slot);
  Grow(input_bytes, slot.host_input);
  Grow(input_bytes, slot.device_input);
  Grow(output_bytes, slot.host_output);
  Grow(output_bytes, slot.device_output);
  return slot;
}

void SlotRing::Submit(std::function<void()> collect) {
  slots_[next_].collect = std::move(collect);
  next_ = (next_ + 1) % slots_.size();
}

void SlotRing::Collect(Slot& slot) {
  if (!slot.collect) return;
  CheckCuda(cudaStreamSynchronize(slot.stream.get()), "cudaStreamSynchronize");
  std::exchange(slot.collect, nullptr)();
}

void SlotRing::Abandon() noexcept {
  for (Slot& slot : slots_) {
    static_cast<void>(cudaStreamSynchronize(slot.stream.get()));
    slot.collect = nullptr;
  }
  static_cast<void>(cudaGetLastError());
}

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
      Piece piece = PieceOf({from.on_device, from.count, from.dtype, nullptr, from.grad_scale});
      piece.count = from.count;
      piece.tensor = index->second;
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

// As ComputeDevice::Tabulate.
void TabulateBlocks(SlotRing& slots, std::span<const DeviceBlock> blocks, float scale,
                    const ComputeDevice::TakeSums& take) {
  const auto submit = [&](const Batch& batch) {
    if (batch.pieces.empty()) return;
    const size_t values = Aligned(batch.pieces.size() * sizeof(Piece));
    const size_t input_bytes = values + batch.staged_bytes;
    const size_t output_bytes = batch.tables.size() * sizeof(TableSums);
    SlotRing::Slot& slot = slots.Next(input_bytes, output_bytes);
    auto* const pieces = reinterpret_cast<Piece*>(slot.host_input.data());
    for (size_t i = 0; i < batch.pieces.size(); ++i) {
      const auto& [piece, staged] = batch.pieces[i];
      pieces[i] = piece;
      if (piece.values == nullptr) pieces[i].values = slot.device_input.data() + values + staged;
    }
    Fill(batch, slot.host_input.data() + values);
    slot.Send(input_bytes);
    CheckCuda(cudaMemsetAsync(slot.device_output.data(), 0, output_bytes, slot.stream.get()),
              "cudaMemsetAsync");
    LaunchTabulate(reinterpret_cast<const Piece*>(slot.device_input.data()),
                   static_cast<uint32_t>(batch.pieces.size()), scale,
                   reinterpret_cast<TableSums*>(slot.device_output.data()), slot.stream.get());
    slot.Fetch(output_bytes);
    slots.Submit([&take, tables = batch.tables,
                  sums = reinterpret_cast<TableSums*>(slot.host_output.data())] {
      for (size_t i = 0; i < tables.size(); ++i) take(tables[i], sums[i]);
    });
  };
  slots.Run([&] {
    while (!blocks.empty()) submit(TakeBatch(blocks));
  });
}

}  // namespace

std::vector<TensorTable> Tabulate(std::span<const DeviceTensor> tensors, Stream stream) {
  std::vector<TensorTable> tables(tensors.size());
  std::vector<DeviceBlock> blocks;
  CheckCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  for (size_t t = 0; t < tensors.size(); ++t) {
    const DeviceTensor& tensor = tensors[t];
    if (tensor.elements == 0) continue;
    const size_t size = DTypeSize(tensor.dtype);
    CheckPointer(kTabulateCall, "values", tensor.values, size);
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

namespace {

// Elements that are converted at once: some MiB, and a multiple of 8, as random streams need it.
constexpr size_t kPieceElements = size_t{1} << 22;

void CopyBytes(std::span<const std::byte> from, std::byte* to) {
  ParallelForBlocks(from.size(), [&](size_t begin, size_t count) {
    std::memcpy(to + begin, from.data() + begin, count);
  });
}

// Converts elements piece by piece: launch(slot, begin, count) converts what the slot holds.
template <class Launch>
void ConvertInPieces(SlotRing& slots, size_t elements, std::span<const std::byte> from,
                     std::span<std::byte> to, const Launch& launch) {
  slots.Run([&] {
    for (size_t begin = 0; begin < elements; begin += kPieceElements) {
      const size_t count = std::min(kPieceElements, elements - begin);
      const size_t from_size = from.size() / elements, to_size = to.size() / elements;
      SlotRing::Slot& slot = slots.Next(count * from_size, count * to_size);
      CopyBytes(from.subspan(begin * from_size, count * from_size), slot.host_input.data());
      slot.Send(count * from_size);
      launch(slot, begin, count);
      slot.Fetch(count * to_size);
      slots.Submit([converted = slot.host_output.data(),
                    piece = to.subspan(begin * to_size, count * to_size)] {
        CopyBytes({converted, piece.size()}, piece.data());
      });
    }
  });
}

}  // namespace

CudaDevice::CudaDevice(int index, std::string name) : index_(index), name_(std::move(name)) {}

void CudaDevice::Tabulate(std::span<const DeviceBlock> blocks, float scale, const TakeSums& take) {
  const CurrentDevice current(index_);
  TabulateBlocks(slots_, blocks, scale, take);
}

void CudaDevice::Read(const std::byte* from, std::span<std::byte> to) {
  const CurrentDevice current(index_);
  CheckCuda(cudaMemcpy(to.data(), from, to.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
}

void CudaDevice::Encode(const ArrayConversion& how, DType dtype, std::span<const std::byte> bytes,
                        std::span<std::byte> codes) {
  const CurrentDevice current(index_);
  const size_t elements = codes.size() / CodeBytes(how.conversion.format);
  ConvertInPieces(slots_, elements, bytes, codes,
                  [&](const SlotRing::Slot& slot, size_t begin, size_t count) {
                    ArrayConversion piece = how;
                    piece.first_index += begin;
                    const DeviceTensor tensor = {slot.device_input.data(), count, dtype,
                                                 slot.device_output.data()};
                    gpu::Encode(piece, tensor, slot.stream.get());
                  });
}

void CudaDevice::Decode(const Format& format, std::span<const std::byte> codes,
                        std::span<float> values) {
  const CurrentDevice current(index_);
  ConvertInPieces(slots_, values.size(), codes, std::as_writable_bytes(values),
                  [&](const SlotRing::Slot& slot, size_t, size_t count) {
                    gpu::Decode(format, slot.device_input.data(),
                                reinterpret_cast<float*>(slot.device_output.data()), count,
                                slot.stream.get());
                  });
}

}  // namespace dlsim::gpu
