// SPDX-License-Identifier: Apache-2.0
// Sequences of float32 inputs that a sweep goes through: all of them, or parts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace dlsim {

inline constexpr uint64_t kAllFloats = uint64_t{1} << 32;

struct InputSequence {
  uint64_t count = 0;
  // Fills in the float32 bits of the inputs from the `first` one on.
  std::function<void(uint64_t first, std::span<uint32_t> inputs)> fill;
};

// The sequence bits(0), bits(1), ...
template <class Bits>
InputSequence MakeSequence(uint64_t count, Bits bits) {
  return {count, [bits](uint64_t first, std::span<uint32_t> inputs) {
            for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = bits(first + i);
          }};
}

// All bit patterns in order: long runs of inputs of one kind.
inline InputSequence AllInputs() {
  return MakeSequence(kAllFloats, [](uint64_t i) { return static_cast<uint32_t>(i); });
}

// One input out of each `stride`, in order, each time another one; `salt` chooses which.
inline InputSequence Stratified(uint32_t stride, uint32_t salt) {
  return MakeSequence(kAllFloats / stride, [stride, salt](uint64_t i) {
    const uint32_t stratum = static_cast<uint32_t>(i);
    const uint32_t hash = (stratum + salt * 0x9E3779B9) * 0x85EBCA6B;
    return stratum * stride + (hash >> 16) % stride;
  });
}

// One input out of each `stride`, a power of two, so shuffled that neighbors differ in kind: an
// odd factor permutes all 2^32 patterns.
inline InputSequence Mixed(uint32_t stride, uint32_t salt) {
  return MakeSequence(kAllFloats / stride, [stride, salt](uint64_t i) {
    return (static_cast<uint32_t>(i) * stride + salt % stride) * 0x9E3779B1;
  });
}

// For each magnitude, both signs of it and of its neighbors.
inline InputSequence Around(std::vector<uint32_t> magnitudes) {
  const auto shared = std::make_shared<const std::vector<uint32_t>>(std::move(magnitudes));
  return MakeSequence(shared->size() * 6, [shared](uint64_t i) {
    const uint32_t neighbor = static_cast<uint32_t>(i % 3) - 1;
    const uint32_t sign = i / 3 % 2 == 0 ? 0 : 0x80000000;
    return ((*shared)[i / 6] + neighbor) ^ sign;
  });
}

}  // namespace dlsim
