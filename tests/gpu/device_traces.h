// SPDX-License-Identifier: Apache-2.0
// Steps that a device is tested with.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "dlsim/codec.h"
#include "dlsim/step_tables.h"
#include "tests/support/special_values.h"
#include "tests/support/trace_builder.h"

namespace dlsim {

inline constexpr Accumulation kAccumulations[] = {Accumulation::kQuantizeThenSum,
                                                  Accumulation::kSumThenQuantize};

inline StepOptions OptionsOf(Accumulation accumulation, ComputeDevice* device = nullptr) {
  StepOptions options;
  options.accumulation = accumulation;
  options.seed = 0x123456789ABCDEF;
  options.device = device;
  return options;
}

// Values of many binades, with specials among the first.
inline std::vector<float> ManyValues(size_t count, uint32_t state) {
  const std::array<float, 6> specials = {0.0f, -0.0f, 1e-42f, kInf, -kInf, std::nanf("")};
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    values[i] = std::ldexp(static_cast<float>(static_cast<int32_t>(state)),
                           -40 - static_cast<int>(state % 61));
    if (state % 997 < specials.size() && i < 3000) values[i] = specials[state % 997];
  }
  return values;
}

// The values in another type; a name of safetensors.
inline BuiltTensor TensorAs(const std::string& dtype, const std::string& name,
                            const std::vector<float>& values) {
  if (dtype == "F32") return FloatTensor(name, values);
  BuiltTensor tensor = {name, dtype, {values.size()}, {}};
  const CodecSpec spec = MakeCodecSpec({dtype == "F16" ? kFp16 : kBf16});
  for (const float value : values) {
    if (dtype == "F64") {
      tensor.bytes += LittleEndian(std::bit_cast<uint64_t>(double{value} * 1.0000001), 8);
    } else {
      const uint32_t bits = std::bit_cast<uint32_t>(value);
      tensor.bytes += LittleEndian(Encode(spec, Rounding::kNearestEven, bits, 0).code, 2);
    }
  }
  return tensor;
}

// A file of two bytes too many, so that what follows is misaligned.
inline BuiltTensor Misaligner() { return {"a.grad", "F16", {1}, std::string(2, '\1')}; }

// Writes a step of all types, misaligned, with an empty tensor and one of several blocks.
inline std::string AllTypes(uint32_t seed) {
  std::vector<BuiltTensor> tensors = {Misaligner()};
  for (const char* dtype : {"F32", "F16", "BF16", "F64"}) {
    tensors.push_back(TensorAs(dtype, std::string(dtype) + ".grad", ManyValues(4500, seed++)));
  }
  tensors.push_back(FloatTensor("empty.grad", {}));
  tensors.push_back(FloatTensor("large.grad", ManyValues(70'000, seed)));
  return BuildSafetensors(tensors, {{"grad_scale", "8"}});
}

}  // namespace dlsim
