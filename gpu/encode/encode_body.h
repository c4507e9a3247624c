// SPDX-License-Identifier: Apache-2.0
// What a thread does to encode its part of one tensor or of many; the same code for devices and, in
// tests, for the host.
#pragma once

#include <cstdint>

#include "dlsim/measure.h"
#include "gpu/base/groups.h"
#include "gpu/base/load_value.h"
#include "gpu/base/piece.h"
#include "gpu/encode/encode_element.h"
#include "gpu/encode/encode_job.h"

namespace dlsim::gpu {

// Thread blocks per piece of a list.
inline constexpr uint32_t kPieceTiles = kBlockElements / kTileElements;
static_assert(kBlockElements % kTileElements == 0);

// Returns the part of a thread block; a count of 0 is no work.
template <class Code>
DLSIM_HOST_DEVICE inline Piece TileOf(const EncodeJob& job, uint64_t block) {
  Piece tile;
  uint64_t begin = 0, elements = 0;
  if (job.pieces != nullptr) {
    tile = job.pieces[block / kPieceTiles];
    begin = block % kPieceTiles * kTileElements;
    elements = tile.count;
  } else {
    tile = job.tensor;
    begin = block * kTileElements;
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

// Loads a thread's groups of a whole tile as float32.
template <DType kDType>
DLSIM_HOST_DEVICE inline void LoadGroups(const Piece& tile, uint32_t thread,
                                         uint32_t (&bits)[kThreadGroups][kGroup]) {
  using Element = typename ElementOf<kDType>::Type;
  Element elements[kThreadGroups][kGroup];
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kThreadGroups; ++i) {
    LoadGroup(reinterpret_cast<const Element*>(tile.values) + GroupBegin(thread, i), elements[i]);
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
DLSIM_HOST_DEVICE inline void ScaleGroups(float factor, uint32_t (&bits)[kThreadGroups][kGroup]) {
  if (factor == 1.0f) return;
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kThreadGroups; ++i) {
    DLSIM_UNROLL
    for (uint32_t j = 0; j < kGroup; ++j) bits[i][j] = ScaleBits(bits[i][j], factor);
  }
}

// Encodes a whole tile in vectors.
template <Rounding kRounding, class Code, class Codec>
DLSIM_HOST_DEVICE inline void EncodeTile(const EncodeJob& job, const Codec& codec,
                                         const Piece& tile, uint32_t thread) {
  uint32_t bits[kThreadGroups][kGroup];
  DispatchDType(tile.dtype,
                [&](auto tag) { LoadGroups<decltype(tag)::value>(tile, thread, bits); });
  ScaleGroups(tile.inverse_grad_scale, bits);
  ScaleGroups(job.scale, bits);
  const RandomStream random = {job.seed, tile.random_stream};
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kThreadGroups; ++i) {
    const uint64_t index = job.first_index + tile.first_index + GroupBegin(thread, i);
    EncodeResult results[kGroup];
    EncodeGroup<kRounding>(codec, random, index, bits[i], results);
    uint32_t codes[kGroup];
    DLSIM_UNROLL
    for (uint32_t j = 0; j < kGroup; ++j) codes[j] = results[j].code;
    StoreGroup(codes, static_cast<Code*>(tile.codes) + GroupBegin(thread, i));
  }
}

// Encodes any tile, element by element.
template <Rounding kRounding, class Code, class Codec>
DLSIM_HOST_DEVICE inline void EncodeElements(const EncodeJob& job, const Codec& codec,
                                             const Piece& tile, uint32_t thread) {
  const RandomStream random = {job.seed, tile.random_stream};
  DLSIM_NO_UNROLL
  for (uint32_t i = thread; i < tile.count; i += kConvertThreads) {
    const uint32_t bits = BitCast<uint32_t>(LoadValue(tile, i));
    const uint64_t index = job.first_index + tile.first_index + i;
    const uint32_t scaled = ScaleBits(bits, job.scale);
    const uint32_t code = EncodeSingle<kRounding>(codec, random, index, scaled).code;
    static_cast<Code*>(tile.codes)[i] = static_cast<Code>(code);
  }
}

// Encodes what belongs to a thread of a block.
template <Rounding kRounding, class Code, class Codec>
DLSIM_HOST_DEVICE inline void EncodeOfThread(const EncodeJob& job, const Codec& codec,
                                             uint64_t block, uint32_t thread) {
  const Piece tile = TileOf<Code>(job, block);
  if (tile.count == kTileElements && IsAligned(tile.values) && IsAligned(tile.codes)) {
    EncodeTile<kRounding, Code>(job, codec, tile, thread);
  } else {
    EncodeElements<kRounding, Code>(job, codec, tile, thread);
  }
}

// Returns the number of blocks of a launch.
inline uint64_t BlocksOf(const EncodeJob& job) {
  return job.pieces != nullptr ? job.piece_count * kPieceTiles
                               : (job.elements + kTileElements - 1) / kTileElements;
}

}  // namespace dlsim::gpu
