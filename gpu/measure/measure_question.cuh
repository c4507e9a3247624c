// SPDX-License-Identifier: Apache-2.0
// A question in the form in which kernels take it, as a parameter: nothing has to be uploaded.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dlsim/codec.h"
#include "dlsim/philox.h"
#include "gpu/measure/measure_kernels.h"
#include "src/measure/measure_nearest.h"

namespace dlsim::gpu {

// Rounding by float additions; see RoundBySum.
struct FloatRounding {
  float min_normal = 0;
  float unit = 0;  // 2^dropped_bits
  float flush_below = 0;
  float plain_max = 0;  // results of magnitudes up to here are finite in all modes
  float max = 0;        // the largest finite result
  float limit = 0;      // larger magnitudes give the results of this one, if it clamps
  float overflow = 0;   // what past_max results become, but where a mode stops at max
  bool applies = false;
  bool clamps = false;
  bool saturates = false;
};

struct KernelQuestion {
  CodecSpec spec = {};
  FloatRounding floats;
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

inline FloatRounding MakeFloatRounding(const CodecSpec& spec) {
  FloatRounding floats;
  if (!spec.gradual) return floats;
  floats.applies = true;
  floats.saturates = spec.saturates;
  floats.min_normal =
      BitCast<float>(spec.min_normal_bits == 0 ? codec::kImplicitBit : spec.min_normal_bits);
  floats.unit = BitCast<float>((127 + spec.dropped_bits) << 23);
  floats.flush_below = spec.flush_below != 0 ? floats.min_normal : 0.0f;
  floats.max = BitCast<float>(Decode(spec, spec.max_code));
  floats.overflow = BitCast<float>(Decode(spec, spec.overflow_code));
  // Up to here twice the addend of the rounding is finite.
  const uint32_t addend_limit = ((kMaxAdditionExponent + 1 - spec.dropped_bits) << 23) - 1;
  const uint32_t past_max = (spec.plain_max_bits & codec::kInfinityBits) + codec::kImplicitBit;
  floats.plain_max = BitCast<float>(std::min(spec.plain_max_bits, addend_limit));
  floats.limit = BitCast<float>(std::min(past_max, addend_limit));
  floats.clamps = past_max <= addend_limit;
  return floats;
}

inline KernelQuestion MakeKernelQuestion(const DeviceQuestion& question, size_t index) {
  KernelQuestion kernel;
  kernel.spec = MakeCodecSpec(question.conversion);
  kernel.rounding = question.conversion.rounding;
  kernel.floats = MakeFloatRounding(kernel.spec);
  kernel.scale = question.scale;
  kernel.tensor_scales = question.tensor_scales;
  kernel.seed = question.seed;
  kernel.index = static_cast<uint32_t>(index);
  return kernel;
}

}  // namespace dlsim::gpu
