// SPDX-License-Identifier: Apache-2.0
#include "gpu/check/cpu_sweep.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <vector>

#include "gpu/check/input_order.h"
#include "src/base/parallel.h"

namespace dlsim::gpu_check {
namespace {

constexpr uint64_t kPart = uint64_t{1} << 20;

template <Rounding kRounding>
uint64_t HashOfPart(const ArrayConversion& how, uint32_t run_bits, uint64_t begin, uint64_t end) {
  const CodecSpec spec = MakeCodecSpec(how.conversion);
  uint64_t hash = 0;
  std::array<uint32_t, kElementsPerPhiloxBlock> random = {};
  for (uint64_t i = begin; i < end; ++i) {
    if (kRounding == Rounding::kStochastic && i % kElementsPerPhiloxBlock == 0) {
      random = RandomBitsOfBlock(how.random, i);
    }
    const uint32_t position = static_cast<uint32_t>(i);
    const uint32_t bits = InputBits(position, run_bits);
    const uint32_t random_bits = random[i % kElementsPerPhiloxBlock];
    hash += MixCode(position, EncodeWith<kRounding>(spec, bits, random_bits).code);
  }
  return hash;
}

auto PartHasher(Rounding rounding) {
  switch (rounding) {
    case Rounding::kNearestEven:
      return HashOfPart<Rounding::kNearestEven>;
    case Rounding::kTowardZero:
      return HashOfPart<Rounding::kTowardZero>;
    case Rounding::kNearestAway:
      return HashOfPart<Rounding::kNearestAway>;
    case Rounding::kTowardPositive:
      return HashOfPart<Rounding::kTowardPositive>;
    case Rounding::kTowardNegative:
      return HashOfPart<Rounding::kTowardNegative>;
    case Rounding::kStochastic:
      break;
  }
  return HashOfPart<Rounding::kStochastic>;
}

}  // namespace

std::array<uint32_t, kElementsPerPhiloxBlock> RandomBitsOfBlock(const RandomStream& random,
                                                                uint64_t first) {
  const uint64_t block = first / kElementsPerPhiloxBlock;
  std::array<uint32_t, kElementsPerPhiloxBlock> bits = {};
  for (uint32_t plane = 0; plane < 2; ++plane) {
    const PhiloxBlock<uint32_t> counter = {
        {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), random.stream, plane}};
    const PhiloxBlock<uint32_t> words = scalar::Philox4x32(ScalarLanes(), counter, random.seed);
    for (size_t i = 0; i < bits.size(); ++i) {
      bits[i] = bits[i] << 16 | (words.word[i / 2] >> (16 * (i % 2)) & 0xFFFF);
    }
  }
  return bits;
}

std::vector<uint32_t> EncodeReference(const ArrayConversion& how, std::span<const float> values) {
  const CodecSpec spec = MakeCodecSpec(how.conversion);
  const Rounding rounding = how.conversion.rounding;
  std::vector<uint32_t> codes(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t random =
        rounding == Rounding::kStochastic ? RandomBits(how.random, how.first_index + i) : 0;
    codes[i] = Encode(spec, rounding, std::bit_cast<uint32_t>(values[i]), random).code;
  }
  return codes;
}

uint64_t HashOfSweep(const ArrayConversion& how, uint32_t run_bits, uint64_t count) {
  std::vector<uint64_t> hashes((count + kPart - 1) / kPart);
  const auto hash_of_part = PartHasher(how.conversion.rounding);
  ParallelFor(hashes.size(), [&](size_t part) {
    const uint64_t begin = part * kPart;
    hashes[part] = hash_of_part(how, run_bits, begin, std::min(count, begin + kPart));
  });
  uint64_t sum = 0;
  for (const uint64_t hash : hashes) sum += hash;
  return sum;
}

}  // namespace dlsim::gpu_check
