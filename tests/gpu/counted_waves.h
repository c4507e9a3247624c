// SPDX-License-Identifier: Apache-2.0
// Pieces of arrays in device memory, and their counting by WaveCounter.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "gpu/base/device_buffer.h"
#include "gpu/count/wave_counter.h"
#include "src/histogram/histogram_sums.h"
#include "tests/gpu/counted_values.h"

namespace dlsim::gpu {

// Arrays of several types on the device, cut into pieces.
struct Wave {
  std::vector<DeviceBuffer<std::byte>> memory;
  std::vector<Piece> pieces;
  DeviceBuffer<Piece> on_device;

  // `offset` elements after an aligned address.
  void Add(uint32_t tensor, DType dtype, const void* values, uint64_t count,
           float inverse_grad_scale = 1.0f, size_t offset = 0) {
    const size_t bytes = DTypeSize(dtype);
    std::vector<std::byte> content((offset + count) * bytes);
    if (count > 0) std::memcpy(content.data() + offset * bytes, values, count * bytes);
    memory.emplace_back(content.size());
    Upload(std::span<const std::byte>(content), memory.back());
    Piece whole;
    whole.values = memory.back().data() + offset * bytes;
    whole.tensor = tensor;
    whole.inverse_grad_scale = inverse_grad_scale;
    whole.dtype = dtype;
    AppendPieces(whole, count, pieces);
  }
  void Add(uint32_t tensor, std::span<const float> values) {
    Add(tensor, DType::kF32, values.data(), values.size());
  }

  void Launch(WaveCounter& counter, const OwnedStream& stream) {
    on_device = DeviceBuffer<Piece>(pieces.size());
    Upload(std::span<const Piece>(pieces), on_device);
    counter.Launch(on_device.data(), pieces, stream.get());
  }
};

inline void Wait(const OwnedStream& stream) { CheckCuda(cudaStreamSynchronize(stream.get()), ""); }

// Counts one array and compares.
inline void ExpectCountedAsOnCpu(std::span<const float> values, const HistogramEdges& edges) {
  Wave wave;
  wave.Add(0, values);
  WaveCounter counter(edges, wave.pieces.size());
  const OwnedStream stream;
  wave.Launch(counter, stream);
  Wait(stream);
  std::vector<HistogramSums> sums(1);
  counter.Collect(sums);
  ExpectEqual(sums[0], CountOnCpu(values, edges));
  ExpectEqual(sums[0], CountByDefinition(values, edges));
}

// Counts tensors of mixed sizes in two launches and compares.
inline void ExpectTensorsCounted(const HistogramEdges& edges, uint32_t tensors,
                                 size_t most_pieces) {
  const std::vector<float> values = KindsOfValues(200000)[1];
  WaveCounter counter(edges, most_pieces);
  const OwnedStream stream;
  std::vector<HistogramSums> sums(tensors), expected(tensors);
  Wave first, second;
  std::mt19937 random(1);
  for (uint32_t tensor = 0; tensor < tensors; tensor += 1 + tensor % 3) {
    const size_t count = tensor % 5 == 0 ? 0 : tensor == 7 ? 200000 : random() % 400;
    const std::span<const float> part = std::span(values).subspan(values.size() - count);
    first.Add(tensor, part);
    second.Add(tensor, part.first(count / 2));
    expected[tensor].Merge(CountByDefinition(part, edges));
    expected[tensor].Merge(CountByDefinition(part.first(count / 2), edges));
  }
  first.Launch(counter, stream);
  second.Launch(counter, stream);
  Wait(stream);
  for (int collections = 0; collections < 2; ++collections) {  // the second finds nothing left
    counter.Collect(sums);
    for (size_t tensor = 0; tensor < tensors; ++tensor) {
      ASSERT_NO_FATAL_FAILURE(ExpectEqual(sums[tensor], expected[tensor])) << tensor;
    }
  }
}

}  // namespace dlsim::gpu
