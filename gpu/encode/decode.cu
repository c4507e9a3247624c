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
  Code groups[kThreadGroups][kGroupElements];
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kThreadGroups; ++i) LoadGroup(codes + GroupBegin(i), groups[i]);
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kThreadGroups; ++i) {
    uint32_t bits[kGroupElements];
    DLSIM_UNROLL
    for (uint32_t j = 0; j < kGroupElements; ++j) bits[j] = decoder(groups[i][j]);
    StoreGroup(bits, values + GroupBegin(i));
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
