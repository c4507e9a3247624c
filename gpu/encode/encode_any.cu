// SPDX-License-Identifier: Apache-2.0
#include "gpu/encode/encode_kernel.cuh"

namespace dlsim::gpu {

void LaunchEncodeToAny(const EncodeJob& job, const Conversion& conversion, Stream stream) {
  const AnyCodec codec = {MakeCodecSpec(conversion)};
  if (CodeBits(conversion.format) <= 16) {
    LaunchEncode<uint16_t>(job, codec, conversion.rounding, stream);
  } else {
    LaunchEncode<uint32_t>(job, codec, conversion.rounding, stream);
  }
}

}  // namespace dlsim::gpu
