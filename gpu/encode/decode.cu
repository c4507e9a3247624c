// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "dlsim/codec.h"
#include "dlsim/gpu/convert.h"
#include "gpu/base/launch.h"
#include "gpu/base/pointers.h"
#include "gpu/encode/encode_job.h"
#include "gpu/encode/groups.cuh"

namespace dlsim::gpu {
namespace {

// A format known at compile time.
template <Format kFormat>
struct TunedDecoder {
  __device__ uint32_t operator()(uint32_t code) const {
    constexpr CodecSpec kSpec = MakeCodecSpec({kFormat});
    return dlsim::Decode(kSpec, code);
  }
};

struct AnyDecoder {
  CodecSpec spec;

  __device__ uint32_t operator()(uint32_t code) const { return dlsim::Decode(spec, code); }
};

// A store of four values leaves no gap between those of a warp's threads: the memory then takes
// whole lines. (Loads may leave some, as in groups.cuh: the cache keeps what the next one needs.)
constexpr uint32_t kQuad = 4;
constexpr uint32_t kThreadQuads = kTileElements / kConvertThreads / kQuad;

__device__ void LoadQuad(const uint16_t* from, uint32_t (&codes)[kQuad]) {
  const uint2 words = __ldcs(reinterpret_cast<const uint2*>(from));
  codes[0] = words.x & 0xFFFF;
  codes[1] = words.x >> 16;
  codes[2] = words.y & 0xFFFF;
  codes[3] = words.y >> 16;
}

__device__ void LoadQuad(const uint32_t* from, uint32_t (&codes)[kQuad]) {
  const uint4 words = __ldcs(reinterpret_cast<const uint4*>(from));
  codes[0] = words.x;
  codes[1] = words.y;
  codes[2] = words.z;
  codes[3] = words.w;
}

template <class Code, class Decoder>
__global__ void __launch_bounds__(kConvertThreads)
    DecodeKernel(const Code* codes, float* values, uint64_t count, Decoder decoder) {
  const uint64_t begin = uint64_t{blockIdx.x} * kTileElements;
  codes += begin;
  values += begin;
  const uint64_t rest = count - begin;
  if (rest < kTileElements || !IsAligned(codes) || !IsAligned(values)) {
    const uint32_t length = rest < kTileElements ? static_cast<uint32_t>(rest) : kTileElements;
    DLSIM_NO_UNROLL
    for (uint32_t i = threadIdx.x; i < length; i += kConvertThreads) {
      values[i] = BitCast<float>(decoder(codes[i]));
    }
    return;
  }
  uint32_t quads[kThreadQuads][kQuad];
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kThreadQuads; ++i) {
    LoadQuad(codes + (i * kConvertThreads + threadIdx.x) * kQuad, quads[i]);
  }
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kThreadQuads; ++i) {
    const uint32_t(&q)[kQuad] = quads[i];
    __stcs(reinterpret_cast<uint4*>(values) + i * kConvertThreads + threadIdx.x,
           make_uint4(decoder(q[0]), decoder(q[1]), decoder(q[2]), decoder(q[3])));
  }
}

template <class Code, class Decoder>
void LaunchDecode(const void* codes, float* values, uint64_t count, const Decoder& decoder,
                  Stream stream) {
  const uint64_t tiles = (count + kTileElements - 1) / kTileElements;
  Launch(kDecodeCall, DecodeKernel<Code, Decoder>, {tiles, kConvertThreads}, stream,
         static_cast<const Code*>(codes), values, count, decoder);
}

}  // namespace

void Decode(const Format& format, const void* codes, float* values, uint64_t count, Stream stream) {
  if (count == 0) return;
  CheckCurrentDevice(kDecodeCall, CheckPointer(kDecodeCall, "codes", codes, CodeBytes(format)));
  CheckCurrentDevice(kDecodeCall, CheckPointer(kDecodeCall, "values", values, sizeof(float)));
  const AnyDecoder any = {MakeCodecSpec({format})};
  if (format == kFp16) {
    LaunchDecode<uint16_t>(codes, values, count, TunedDecoder<kFp16>(), stream);
  } else if (format == kBf16) {
    LaunchDecode<uint16_t>(codes, values, count, TunedDecoder<kBf16>(), stream);
  } else if (format == kCb16) {
    LaunchDecode<uint16_t>(codes, values, count, TunedDecoder<kCb16>(), stream);
  } else if (CodeBytes(format) == sizeof(uint16_t)) {
    LaunchDecode<uint16_t>(codes, values, count, any, stream);
  } else {
    LaunchDecode<uint32_t>(codes, values, count, any, stream);
  }
}

}  // namespace dlsim::gpu
