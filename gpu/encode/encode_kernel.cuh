// SPDX-License-Identifier: Apache-2.0
// The kernel that encodes one tensor or many, and its launcher for a codec.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "dlsim/measure.h"
#include "gpu/base/launch.h"
#include "gpu/base/piece.h"
#include "gpu/encode/encode_element.cuh"
#include "gpu/encode/encode_job.h"
#include "gpu/encode/groups.cuh"

namespace dlsim::gpu {

// Thread blocks per piece of a list.
inline constexpr uint32_t kPieceTiles = kBlockElements / kTileElements;
static_assert(kBlockElements % kTileElements == 0);

// Returns this thread block's part; a count of 0 is no work.
template <class Code>
__device__ inline Piece TileOf(const EncodeJob& job) {
  Piece tile;
  uint64_t begin = 0, elements = 0;
  if (job.pieces != nullptr) {
    tile = job.pieces[blockIdx.x / kPieceTiles];
    begin = blockIdx.x % kPieceTiles * kTileElements;
    elements = tile.count;
  } else {
    tile = job.tensor;
    begin = uint64_t{blockIdx.x} * kTileElements;
    elements = job.elements;
  }
  tile.count = 0;
  if (begin >= elements) return tile;
  const uint64_t rest = elements - begin;
  tile.count = rest < kTileElements ? static_cast<uint32_t>(rest) : kTileElements;
  tile.values += begin * DTypeSize(tile.dtype);
  tile.first_index += begin;
  tile.codes = static_cast<Code*>(tile.codes) + tile.first_index;
  return tile;
}

// Loads this thread's groups of a whole tile as float32.
template <DType kDType>
__device__ inline void LoadGroups(const Piece& tile, uint32_t (&bits)[kThreadGroups][kGroup]) {
  using Element = typename ElementOf<kDType>::Type;
  Element elements[kThreadGroups][kGroup];
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kThreadGroups; ++i) {
    LoadGroup(reinterpret_cast<const Element*>(tile.values) + GroupBegin(i), elements[i]);
  }
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kThreadGroups; ++i) {
    DLSIM_UNROLL
    for (uint32_t j = 0; j < kGroup; ++j) {
      bits[i][j] = BitCast<uint32_t>(ToFloat<kDType>(elements[i][j]));
    }
  }
}

// A factor of 1 changes nothing that a code can show.
__device__ inline void ScaleGroups(float factor, uint32_t (&bits)[kThreadGroups][kGroup]) {
  if (factor == 1.0f) return;
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kThreadGroups; ++i) {
    DLSIM_UNROLL
    for (uint32_t j = 0; j < kGroup; ++j) bits[i][j] = ScaleBits(bits[i][j], factor);
  }
}

// Encodes a whole tile in vectors.
template <Rounding kRounding, class Code, class Codec>
__device__ inline void EncodeTile(const EncodeJob& job, const Codec& codec, const Piece& tile) {
  uint32_t bits[kThreadGroups][kGroup];
  DispatchDType(tile.dtype, [&](auto tag) { LoadGroups<decltype(tag)::value>(tile, bits); });
  ScaleGroups(tile.inverse_grad_scale, bits);
  ScaleGroups(job.scale, bits);
  const RandomStream random = {job.seed, tile.random_stream};
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kThreadGroups; ++i) {
    const uint64_t index = job.first_index + tile.first_index + GroupBegin(i);
    EncodeResult results[kGroup];
    EncodeGroup<kRounding>(codec, random, index, bits[i], results);
    uint32_t codes[kGroup];
    DLSIM_UNROLL
    for (uint32_t j = 0; j < kGroup; ++j) codes[j] = results[j].code;
    StoreGroup(codes, static_cast<Code*>(tile.codes) + GroupBegin(i));
  }
}

// Encodes any tile, element by element.
template <Rounding kRounding, class Code, class Codec>
__device__ inline void EncodeElements(const EncodeJob& job, const Codec& codec, const Piece& tile) {
  const RandomStream random = {job.seed, tile.random_stream};
  DLSIM_NO_UNROLL
  for (uint32_t i = threadIdx.x; i < tile.count; i += kConvertThreads) {
    const uint32_t bits = BitCast<uint32_t>(LoadValue(tile, i));
    const uint64_t index = job.first_index + tile.first_index + i;
    const uint32_t scaled = ScaleBits(bits, job.scale);
    const uint32_t code = EncodeSingle<kRounding>(codec, random, index, scaled).code;
    static_cast<Code*>(tile.codes)[i] = static_cast<Code>(code);
  }
}

template <Rounding kRounding, class Code, class Codec>
__global__ void __launch_bounds__(kConvertThreads) EncodeKernel(EncodeJob job, Codec codec) {
  const Piece tile = TileOf<Code>(job);
  if (tile.count == kTileElements && IsAligned(tile.values) && IsAligned(tile.codes)) {
    EncodeTile<kRounding, Code>(job, codec, tile);
  } else {
    EncodeElements<kRounding, Code>(job, codec, tile);
  }
}

template <class Code, class Codec>
void LaunchEncode(const EncodeJob& job, const Codec& codec, Rounding rounding, Stream stream) {
  const uint64_t tiles = job.pieces != nullptr ? job.piece_count * kPieceTiles
                                               : (job.elements + kTileElements - 1) / kTileElements;
  const LaunchShape shape = {tiles, kConvertThreads};
  const auto launch = [&](auto* kernel) { Launch(kEncodeCall, kernel, shape, stream, job, codec); };
  switch (rounding) {
    case Rounding::kNearestEven:
      return launch(EncodeKernel<Rounding::kNearestEven, Code, Codec>);
    case Rounding::kTowardZero:
      return launch(EncodeKernel<Rounding::kTowardZero, Code, Codec>);
    case Rounding::kNearestAway:
      return launch(EncodeKernel<Rounding::kNearestAway, Code, Codec>);
    case Rounding::kTowardPositive:
      return launch(EncodeKernel<Rounding::kTowardPositive, Code, Codec>);
    case Rounding::kTowardNegative:
      return launch(EncodeKernel<Rounding::kTowardNegative, Code, Codec>);
    case Rounding::kStochastic:
      return launch(EncodeKernel<Rounding::kStochastic, Code, Codec>);
  }
}

// Defines the launcher for a format.
template <Format kFormat>
void LaunchEncodeTo(const EncodeJob& job, const Conversion& conversion, Stream stream) {
  const TunedCodec<kFormat> codec = MakeTunedCodec<kFormat>(conversion);
  LaunchEncode<uint16_t>(job, codec, conversion.rounding, stream);
}

}  // namespace dlsim::gpu
