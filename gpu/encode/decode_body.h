// SPDX-License-Identifier: Apache-2.0
// What a thread does to decode its part of an array; the same code for devices and, in tests, for
// the host.
#pragma once

#include <cstdint>

#include "dlsim/codec.h"
#include "gpu/base/groups.h"

namespace dlsim::gpu {

// A format known at compile time.
template <Format kFormat>
struct TunedDecoder {
  DLSIM_HOST_DEVICE uint32_t operator()(uint32_t code) const {
    constexpr CodecSpec kSpec = MakeCodecSpec({kFormat});
    return dlsim::Decode(kSpec, code);
  }
};

struct AnyDecoder {
  CodecSpec spec;

  DLSIM_HOST_DEVICE uint32_t operator()(uint32_t code) const { return dlsim::Decode(spec, code); }
};

// A store of four values leaves no gap between those of a warp's threads: the memory then takes
// whole lines. (Loads may leave some, as in groups.h: the cache keeps what the next one needs.)
inline constexpr uint32_t kQuad = 4;
inline constexpr uint32_t kThreadQuads = kTileElements / kConvertThreads / kQuad;

DLSIM_HOST_DEVICE inline void LoadQuad(const uint16_t* from, uint32_t (&codes)[kQuad]) {
  const HalfWords words = LoadOnce(reinterpret_cast<const HalfWords*>(from));
  codes[0] = words.x & 0xFFFF;
  codes[1] = words.x >> 16;
  codes[2] = words.y & 0xFFFF;
  codes[3] = words.y >> 16;
}

DLSIM_HOST_DEVICE inline void LoadQuad(const uint32_t* from, uint32_t (&codes)[kQuad]) {
  const Words words = LoadOnce(reinterpret_cast<const Words*>(from));
  codes[0] = words.x;
  codes[1] = words.y;
  codes[2] = words.z;
  codes[3] = words.w;
}

// Decodes what belongs to a thread of a block: a tile in vectors, or element by element.
template <class Code, class Decoder>
DLSIM_HOST_DEVICE inline void DecodeOfThread(const Code* codes, float* values, uint64_t count,
                                             const Decoder& decoder, uint64_t block,
                                             uint32_t thread) {
  const uint64_t begin = block * kTileElements;
  codes += begin;
  values += begin;
  const uint64_t rest = count - begin;
  if (rest < kTileElements || !IsAligned(codes) || !IsAligned(values)) {
    const uint32_t length = rest < kTileElements ? static_cast<uint32_t>(rest) : kTileElements;
    DLSIM_NO_UNROLL
    for (uint32_t i = thread; i < length; i += kConvertThreads) {
      values[i] = BitCast<float>(decoder(codes[i]));
    }
    return;
  }
  uint32_t quads[kThreadQuads][kQuad];
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kThreadQuads; ++i) {
    LoadQuad(codes + (i * kConvertThreads + thread) * kQuad, quads[i]);
  }
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kThreadQuads; ++i) {
    const uint32_t(&q)[kQuad] = quads[i];
    StoreOnce({decoder(q[0]), decoder(q[1]), decoder(q[2]), decoder(q[3])},
              reinterpret_cast<Words*>(values) + i * kConvertThreads + thread);
  }
}

}  // namespace dlsim::gpu
