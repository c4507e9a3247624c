// SPDX-License-Identifier: Apache-2.0
// The kernels that encode and decode, and their launchers.
#include "dlsim/gpu/kernels.h"

#include <cuda_runtime.h>

#include <string>
#include <string_view>

#include "dlsim/error.h"
#include "gpu/base/cuda.h"
#include "gpu/encode/convert_body.h"

namespace dlsim::gpu {
namespace {

// In errors of launches.
constexpr std::string_view kEncodeCall = "dlsim::gpu::Encode";
constexpr std::string_view kDecodeCall = "dlsim::gpu::Decode";

template <Rounding kRounding, class Code, class Codec>
__global__ void __launch_bounds__(kConvertThreads) EncodeKernel(EncodeJob job, Codec codec) {
  EncodeOfThread<kRounding, Code>(job, codec, blockIdx.x, threadIdx.x);
}

template <class Code, class Codec>
void LaunchEncode(const EncodeJob& job, const Codec& codec, Rounding rounding, Stream stream) {
  const LaunchShape shape = {BlocksOf(job.elements), kConvertThreads};
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

template <class Code, class Decoder>
__global__ void __launch_bounds__(kConvertThreads)
    DecodeKernel(const Code* codes, float* values, uint64_t count, Decoder decoder) {
  DecodeOfThread(codes, values, count, decoder, blockIdx.x, threadIdx.x);
}

template <class Code, class Decoder>
void LaunchDecode(const void* codes, float* values, uint64_t count, const Decoder& decoder,
                  Stream stream) {
  Launch(kDecodeCall, DecodeKernel<Code, Decoder>, {BlocksOf(count), kConvertThreads}, stream,
         static_cast<const Code*>(codes), values, count, decoder);
}

template <Format kFormat>
void LaunchTuned(const EncodeJob& job, const Conversion& conversion, Stream stream) {
  LaunchEncode<uint16_t>(job, MakeTunedCodec<kFormat>(conversion), conversion.rounding, stream);
}

void LaunchEncode(const EncodeJob& job, const Conversion& conversion, Stream stream) {
  const Format& format = conversion.format;
  if (format == kFp16) return LaunchTuned<kFp16>(job, conversion, stream);
  if (format == kBf16) return LaunchTuned<kBf16>(job, conversion, stream);
  if (format == kCb16) return LaunchTuned<kCb16>(job, conversion, stream);
  const AnyCodec codec = {MakeCodecSpec(conversion)};
  if (CodeBytes(format) == sizeof(uint16_t)) {
    LaunchEncode<uint16_t>(job, codec, conversion.rounding, stream);
  } else {
    LaunchEncode<uint32_t>(job, codec, conversion.rounding, stream);
  }
}

}  // namespace

void Encode(const ArrayConversion& how, const DeviceTensor& tensor, Stream stream) {
  if (how.first_index % kElementsPerPhiloxBlock != 0) {
    throw InputError(kEncodeCall, "bad first_index", "a multiple of 8",
                     std::to_string(how.first_index));
  }
  if (tensor.elements == 0) return;
  CheckPointer(kEncodeCall, "values", tensor.values, DTypeSize(tensor.dtype));
  CheckPointer(kEncodeCall, "codes", tensor.codes, CodeBytes(how.conversion.format));
  LaunchEncode({PieceOf(tensor), tensor.elements, how.scale, how.random, how.first_index},
               how.conversion, stream);
}

void Decode(const Format& format, const void* codes, float* values, uint64_t count, Stream stream) {
  if (count == 0) return;
  CheckPointer(kDecodeCall, "codes", codes, CodeBytes(format));
  CheckPointer(kDecodeCall, "values", values, sizeof(float));
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
