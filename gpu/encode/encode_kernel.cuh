// SPDX-License-Identifier: Apache-2.0
// The kernel that encodes one tensor or many, and its launcher for a codec.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "gpu/base/launch.h"
#include "gpu/encode/convert_body.h"

namespace dlsim::gpu {

template <Rounding kRounding, class Code, class Codec>
__global__ void __launch_bounds__(kConvertThreads) EncodeKernel(EncodeJob job, Codec codec) {
  EncodeOfThread<kRounding, Code>(job, codec, blockIdx.x, threadIdx.x);
}

template <class Code, class Codec>
void LaunchEncode(const EncodeJob& job, const Codec& codec, Rounding rounding, Stream stream) {
  const LaunchShape shape = {BlocksOf(job), kConvertThreads};
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
