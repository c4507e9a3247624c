// SPDX-License-Identifier: Apache-2.0
// The kernels that encode and decode, and their launchers.
#include "dlsim/gpu.h"

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
  WithRounding(rounding, [&](auto mode) {
    Launch(kEncodeCall, EncodeKernel<decltype(mode)::value, Code, Codec>, shape, stream, job,
           codec);
  });
}

template <class Code, class Codec>
__global__ void __launch_bounds__(kConvertThreads)
    DecodeKernel(const Code* codes, float* values, uint64_t count, Codec codec) {
  DecodeOfThread(codes, values, count, codec, blockIdx.x, threadIdx.x);
}

template <class Code, class Codec>
void LaunchDecode(const void* codes, float* values, uint64_t count, const Codec& codec,
                  Stream stream) {
  Launch(kDecodeCall, DecodeKernel<Code, Codec>, {BlocksOf(count), kConvertThreads}, stream,
         static_cast<const Code*>(codes), values, count, codec);
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
  const EncodeJob job = {PieceOf(tensor), tensor.elements, how.scale, how.random, how.first_index};
  WithCodec(how.conversion, [&](const auto& codec, auto code) {
    LaunchEncode<decltype(code)>(job, codec, how.conversion.rounding, stream);
  });
}

void Decode(const Format& format, const void* codes, float* values, uint64_t count, Stream stream) {
  if (count == 0) return;
  CheckPointer(kDecodeCall, "codes", codes, CodeBytes(format));
  CheckPointer(kDecodeCall, "values", values, sizeof(float));
  WithCodec({format}, [&](const auto& codec, auto code) {
    LaunchDecode<decltype(code)>(codes, values, count, codec, stream);
  });
}

}  // namespace dlsim::gpu
