// SPDX-License-Identifier: Apache-2.0
// The loop that all kernels share that encode by the definition, of which compilers make vectors of
// the SIMD target, and random bits in bulk for it; re-included for each.
#if defined(DLSIM_ENCODE_LOOP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_ENCODE_LOOP_INL_H_
#undef DLSIM_ENCODE_LOOP_INL_H_
#else
#define DLSIM_ENCODE_LOOP_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "dlsim/codec.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

// At most 16 lanes, as many as kRandomIndices of convert.cc has.
using U32Tag = hn::CappedTag<uint32_t, 16>;
using U64Tag = hn::RepartitionToWide<U32Tag>;

// Random bits of the elements of one Philox block per 64-bit lane, 16 for each element.
struct PhiloxHalves {
  // Written out: GCC compiles an implicit one without the target's attributes, and then cannot
  // inline that of NEON's vectors.
  HWY_INLINE PhiloxHalves() {}

  hn::Vec<U64Tag> first;  // words 0 and 1: elements 0 to 3, the lowest bits first
  hn::Vec<U64Tag> last;   // words 2 and 3: elements 4 to 7
};

// Vectors of blocks that are computed together: a round waits for the one before, so that several
// are needed to keep the multipliers busy.
inline constexpr size_t kPhiloxVectors = 4;

// Returns how many elements kPhiloxVectors serve.
HWY_INLINE size_t PhiloxElements() {
  return kPhiloxVectors * hn::Lanes(U64Tag()) * kElementsPerPhiloxBlock;
}

// Philox4x32-10 of philox.h for one plane of a stream and consecutive blocks, one block per 64-bit
// lane. A word of the state is the low half of its lane: the multiplication reads no more, so that
// a whole product may stand for its low word, and the high word is one shift away.
class PhiloxPlane {
 public:
  using V = hn::Vec<U64Tag>;

  // All counters have `block_high` as their second word. Then two of the four words are constant
  // in the first round and in the second, and so are their products.
  HWY_INLINE PhiloxPlane(const RandomStream& random, uint32_t block_high, uint32_t plane) {
    uint32_t key0 = static_cast<uint32_t>(random.seed);
    uint32_t key1 = static_cast<uint32_t>(random.seed >> 32);
    const auto set = [&](size_t round, uint32_t xor0, uint32_t xor1) HWY_ATTR {
      xor0_[round] = hn::Set(U64Tag(), xor0 ^ key0);
      xor1_[round] = hn::Set(U64Tag(), xor1 ^ key1);
      key0 += kPhiloxWeyl0;
      key1 += kPhiloxWeyl1;
    };
    const uint64_t product1 = uint64_t{random.stream} * kPhiloxMultiplier1;
    const uint32_t word0 = static_cast<uint32_t>(product1 >> 32) ^ block_high ^ key0;
    const uint64_t product0 = uint64_t{word0} * kPhiloxMultiplier0;
    set(0, 0, plane);
    set(1, static_cast<uint32_t>(product1), static_cast<uint32_t>(product0 >> 32));
    set(2, 0, static_cast<uint32_t>(product0));
    for (size_t round = 3; round < kPhiloxRounds; ++round) set(round, 0, 0);
  }

  // Fills kPhiloxVectors with the bits of consecutive blocks; the first word of a counter is the
  // low half of a lane of `blocks`, which is advanced.
  HWY_INLINE void Fill(V& blocks, PhiloxHalves* HWY_RESTRICT halves) const {
    V word0[kPhiloxVectors], word1[kPhiloxVectors], word2[kPhiloxVectors], word3[kPhiloxVectors];
    for (size_t i = 0; i < kPhiloxVectors; ++i) {
      const V product = Multiply(blocks, kPhiloxMultiplier0);
      blocks = hn::Add(blocks, hn::Set(U64Tag(), hn::Lanes(U64Tag())));
      word2[i] = hn::Xor(High(product), xor1_[0]);
      word1[i] = Multiply(word2[i], kPhiloxMultiplier1);
      word0[i] = hn::Xor(High(word1[i]), xor0_[1]);
      word2[i] = hn::Xor(product, xor1_[1]);
      word3[i] = hn::Zero(U64Tag());  // it is in xor1_[2]
    }
    constexpr size_t kLast = kPhiloxRounds - 1;
    for (size_t round = 2; round < kLast; ++round) {
      for (size_t i = 0; i < kPhiloxVectors; ++i) {
        const V product0 = Multiply(word0[i], kPhiloxMultiplier0);
        const V product1 = Multiply(word2[i], kPhiloxMultiplier1);
        word0[i] = hn::Xor3(High(product1), word1[i], xor0_[round]);
        word2[i] = hn::Xor3(High(product0), word3[i], xor1_[round]);
        word1[i] = product1;
        word3[i] = product0;
      }
    }
    for (size_t i = 0; i < kPhiloxVectors; ++i) {
      const V product0 = Multiply(word0[i], kPhiloxMultiplier0);
      const V product1 = Multiply(word2[i], kPhiloxMultiplier1);
      halves[i].first = LastWords(product1, word1[i], xor0_[kLast]);
      halves[i].last = LastWords(product0, word3[i], xor1_[kLast]);
    }
  }

 private:
  static HWY_INLINE V Multiply(V word, uint32_t factor) {
    const U32Tag u32;
    return hn::MulEven(hn::BitCast(u32, word), hn::Set(u32, factor));
  }
  static HWY_INLINE V High(V product) { return hn::ShiftRight<32>(product); }

  // Puts the high word of the product, combined as in any round, before its low word.
  static HWY_INLINE V LastWords(V product, V word, V key) {
    const U32Tag u32;
    const auto swapped = hn::Shuffle2301(hn::BitCast(u32, product));
#if HWY_TARGET <= HWY_AVX3
    constexpr int kXor3 = 0x96;
    return V{_mm512_mask_ternarylogic_epi32(swapped.raw, 0x5555, word.raw, key.raw, kXor3)};
#else
    const auto mixed = hn::Xor(hn::BitCast(u32, hn::Xor(word, key)), swapped);
    return hn::BitCast(U64Tag(), hn::OddEven(swapped, mixed));
#endif
  }

  V xor0_[kPhiloxRounds];  // what words 0 and 2 of each round are combined with:
  V xor1_[kPhiloxRounds];  // the keys, and words that are constant
};

#endif  // HWY_TARGET != HWY_SCALAR

// Returns how many elements from `index` on, a multiple of 8, have the second word of their Philox
// counters in common.
HWY_INLINE uint64_t ElementsBeforeCarry(uint64_t index) {
  constexpr uint64_t kPeriod = kElementsPerPhiloxBlock << 32;
  return kPeriod - index % kPeriod;
}

// Elements whose random bits are made at once: small enough for the first-level cache.
inline constexpr size_t kRandomRun = 512;

// Halves of their random bits, and room for what is made with the last.
struct RandomHalves {
  alignas(64) uint16_t of[kRandomRun + 256];
};

// Fills `halves` for `count` elements whose counters have one second word; may write up to
// PhiloxElements() - 8 more.
HWY_INLINE void FillHalves(const RandomStream& random, uint64_t first, uint32_t plane, size_t count,
                           uint16_t* HWY_RESTRICT halves) {
  const uint64_t block = first / kElementsPerPhiloxBlock;
  const uint32_t block_low = static_cast<uint32_t>(block);
  const uint32_t block_high = static_cast<uint32_t>(block >> 32);
#if HWY_TARGET == HWY_SCALAR
  for (size_t i = 0; i < count; i += kElementsPerPhiloxBlock) {
    const uint32_t low = block_low + static_cast<uint32_t>(i / kElementsPerPhiloxBlock);
    const PhiloxBlock words = Philox4x32({{low, block_high, random.stream, plane}}, random.seed);
    for (size_t half = 0; half < kElementsPerPhiloxBlock; ++half) {
      halves[i + half] = static_cast<uint16_t>(words.word[half / 2] >> (16 * (half % 2)));
    }
  }
#else
  const PhiloxPlane philox(random, block_high, plane);
  auto blocks = hn::Iota(U64Tag(), block_low);
  for (size_t i = 0; i < count; i += PhiloxElements()) {
    PhiloxHalves bits[kPhiloxVectors];
    philox.Fill(blocks, bits);
    for (size_t j = 0; j < kPhiloxVectors; ++j) {
      // The low half of a word, stored first, serves the earlier element.
      const auto to = halves + i + j * PhiloxElements() / kPhiloxVectors;
      hn::StoreInterleaved2(bits[j].first, bits[j].last, U64Tag(), reinterpret_cast<uint64_t*>(to));
    }
  }
#endif
}

// Returns one plane for the elements from `first` (a multiple of 8) on.
HWY_INLINE RandomHalves PlaneOf(const RandomStream& random, uint64_t first, uint32_t plane) {
  RandomHalves halves;
  const size_t before_carry = HWY_MIN(ElementsBeforeCarry(first), kRandomRun);
  FillHalves(random, first, plane, before_carry, halves.of);
  FillHalves(random, first + before_carry, plane, kRandomRun - before_carry,
             halves.of + before_carry);
  return halves;
}

// Elements to fetch ahead: 2 KiB, past which nothing is gained in DRAM.
inline constexpr size_t kPrefetchDistance = 512;

// Calls encode(begin, end, random) for runs of `count` values that are scaled and encoded;
// random[i] are the random bits of values[begin + i] for kStochastic. `first_index` is the index of
// values[0] in the random stream, a multiple of 8.
template <Rounding kRounding, class Encode>
HWY_INLINE void ForEachRun(const CodecSpec& spec, float scale, const RandomStream& random,
                           uint64_t first_index, const float* HWY_RESTRICT values, size_t count,
                           const Encode& encode) {
  alignas(64) uint32_t words[kRandomRun];
  for (size_t begin = 0; begin < count; begin += kRandomRun) {
    const size_t end = HWY_MIN(begin + kRandomRun, count);
    if constexpr (kRounding == Rounding::kStochastic) {
      const RandomHalves high = PlaneOf(random, first_index + begin, 0);
      for (size_t i = 0; i < kRandomRun; ++i) words[i] = uint32_t{high.of[i]} << 16;
      const bool needs_low = std::any_of(values + begin, values + end, [&](float value) {
        return NeedsLowRandomBits(spec, std::bit_cast<uint32_t>(value * scale));
      });
      if (needs_low) {
        const RandomHalves low = PlaneOf(random, first_index + begin, 1);
        for (size_t i = 0; i < kRandomRun; ++i) words[i] |= low.of[i];
      }
    }
    // Hardware prefetchers lose track between chunks, and virtual machines may lack them.
    constexpr size_t kLine = 64 / sizeof(float);
    for (size_t i = begin; i < end; i += kLine) hwy::Prefetch(values + i + kPrefetchDistance);
    encode(begin, end, words);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
