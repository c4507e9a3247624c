// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "dlsim/codec.h"
#include "dlsim/gpu/convert.h"
#include "gpu/base/check_cuda.h"
#include "gpu/base/launch.h"
#include "gpu/encode/convert_body.h"

namespace dlsim::gpu {
namespace {

template <class Code, class Decoder>
__global__ void __launch_bounds__(kConvertThreads)
    DecodeKernel(const Code* codes, float* values, uint64_t count, Decoder decoder) {
  DecodeOfThread(codes, values, count, decoder, blockIdx.x, threadIdx.x);
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
