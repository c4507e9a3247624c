// SPDX-License-Identifier: Apache-2.0
#include "gpu/check/data_sets.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace dlsim::gpu_check {
namespace {

HostTensor NarrowTensor(std::string name, DType dtype, std::span<const float> values) {
  const Format format = dtype == DType::kF16 ? kFp16 : kBf16;
  std::vector<uint16_t> codes;
  for (const uint32_t code : EncodeReference({{format}}, values)) {
    codes.push_back(static_cast<uint16_t>(code));
  }
  HostTensor tensor = {std::move(name), dtype, {}, 1.0f, 0};
  const auto bytes = std::as_bytes(std::span(codes));
  tensor.bytes.assign(bytes.begin(), bytes.end());
  return tensor;
}

HostTensor WideTensor(std::string name, std::span<const float> values) {
  std::vector<double> wide;  // with digits that rounding to float32 drops
  for (const float value : values) wide.push_back(double{value} * (1 + 0x1.8p-25));
  HostTensor tensor = {std::move(name), DType::kF64, {}, 1.0f, 0};
  const auto bytes = std::as_bytes(std::span(wide));
  tensor.bytes.assign(bytes.begin(), bytes.end());
  return tensor;
}

// Bit patterns at and beside every power of two, for both signs, and infinities and NaNs.
std::vector<float> Specials() {
  std::vector<float> values;
  for (const uint32_t sign : {0u, codec::kSignBit}) {
    for (uint32_t exponent = 0; exponent < 256; ++exponent) {
      for (const uint32_t mantissa : {0u, 1u, 0x1000u, 0x7FFFFFu, 0x400000u, 0x3FFFFFu}) {
        values.push_back(std::bit_cast<float>(sign | exponent << 23 | mantissa));
      }
    }
  }
  return values;
}

}  // namespace

std::vector<float> DrawValues(DataSet data, uint64_t count, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-36, 3);
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(generator);
    if (data == DataSet::kGrad) value = std::ldexp(value, exponent(generator));
  }
  return values;
}

std::vector<HostTensor> CheckedTensors(uint64_t most) {
  std::vector<HostTensor> tensors = {TensorOf("specials", Specials()),
                                     TensorOf("zeros", std::vector<float>(5000, -0.0f)),
                                     TensorOf("one value", std::vector<float>(70000, 0.1f))};
  for (const uint64_t size : {uint64_t{33}, uint64_t{1000}, uint64_t{4097}, uint64_t{65537}}) {
    if (size > most) continue;
    const std::string number = std::to_string(size);
    const std::vector<float> grad = DrawValues(DataSet::kGrad, size, 11 + size);
    tensors.push_back(TensorOf("grad F32 " + number, grad));
    tensors.push_back(NarrowTensor("grad F16 " + number, DType::kF16, grad));
    tensors.push_back(NarrowTensor("grad BF16 " + number, DType::kBF16, grad));
    tensors.push_back(WideTensor("grad F64 " + number, grad));
  }
  // The same as recorded under a scale.
  for (size_t i = 0, plain = tensors.size(); i < plain; ++i) {
    HostTensor scaled = tensors[i];
    scaled.name += " recorded at 3";
    scaled.grad_scale = 3.0f;
    tensors.push_back(std::move(scaled));
  }
  for (const uint64_t size :
       {uint64_t{0}, uint64_t{1}, uint64_t{31}, uint64_t{32}, uint64_t{4095}, uint64_t{4096},
        uint64_t{65535}, uint64_t{65536}, uint64_t{200003}, most}) {
    if (size > most) continue;
    const std::string number = std::to_string(size);
    tensors.push_back(TensorOf("normal " + number, DrawValues(DataSet::kNormal, size, size)));
    tensors.push_back(TensorOf("grad " + number, DrawValues(DataSet::kGrad, size, 7 + size)));
  }
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].random_stream = static_cast<uint32_t>(i);
  return tensors;
}

}  // namespace dlsim::gpu_check
