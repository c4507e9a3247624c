// SPDX-License-Identifier: Apache-2.0
// A question in the form in which kernels take it, as a parameter: nothing has to be uploaded.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dlsim/codec.h"
#include "dlsim/philox.h"
#include "measure_kernels.h"
#include "measure_plain.h"

namespace dlsim::gpu {

// Rounding to nearest even by one float addition, where inputs and results are finite; see
// PlainElement.
struct PlainRounding {
  float min_normal = 0;
  float unit = 0;  // 2^dropped_bits
  float flush_below = 0;
  float max = 0;  // the largest scaled magnitude for which this holds; negative = for none
};

struct KernelQuestion {
  CodecSpec spec = {};
  PlainRounding plain;
  Rounding rounding = Rounding::kNearestEven;
  float scale = 1.0f;
  const float* tensor_scales = nullptr;
  uint64_t seed = 0;
  uint32_t index = 0;  // among all questions

  DLSIM_HOST_DEVICE float ScaleOf(const Piece& piece) const {
    return tensor_scales == nullptr ? scale : tensor_scales[piece.tensor];
  }
  DLSIM_HOST_DEVICE RandomStream RandomOf(const Piece& piece) const {
    return {seed, piece.random_stream};
  }
};

inline PlainRounding MakePlainRounding(const CodecSpec& spec, Rounding rounding) {
  PlainRounding plain;
  plain.max = -1;
  if (!spec.gradual || rounding != Rounding::kNearestEven) return plain;
  plain.min_normal =
      BitCast<float>(spec.min_normal_bits == 0 ? codec::kImplicitBit : spec.min_normal_bits);
  plain.flush_below = spec.flush_below != 0 ? plain.min_normal : 0.0f;
  plain.unit = BitCast<float>((127 + spec.dropped_bits) << 23);
  // Where twice the addend is finite, too.
  const uint32_t limit_exponent = kMaxAdditionExponent + 1 - spec.dropped_bits;
  plain.max = BitCast<float>(std::min(spec.plain_max_bits, (limit_exponent << 23) - 1));
  return plain;
}

inline KernelQuestion MakeKernelQuestion(const DeviceQuestion& question, size_t index) {
  KernelQuestion kernel;
  kernel.spec = MakeCodecSpec(question.conversion);
  kernel.rounding = question.conversion.rounding;
  kernel.plain = MakePlainRounding(kernel.spec, kernel.rounding);
  kernel.scale = question.scale;
  kernel.tensor_scales = question.tensor_scales;
  kernel.seed = question.seed;
  kernel.index = static_cast<uint32_t>(index);
  return kernel;
}

}  // namespace dlsim::gpu
