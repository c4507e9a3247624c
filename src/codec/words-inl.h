// SPDX-License-Identifier: Apache-2.0
// Two vectors of 32-bit lanes as one vector of 16-bit words, and back to memory; re-included per
// SIMD target.
#if defined(DLSIM_WORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_WORDS_INL_H_
#undef DLSIM_WORDS_INL_H_
#else
#define DLSIM_WORDS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "src/codec/lanes-inl.h"

// Whether the target has AVX-512, and the instructions between float32 and float16.
#undef DLSIM_AVX3
#undef DLSIM_F16C
#define DLSIM_AVX3 (HWY_TARGET == HWY_AVX3)
#ifdef HWY_DISABLE_F16C
#define DLSIM_F16C 0
#else
#define DLSIM_F16C (DLSIM_AVX3 || HWY_TARGET == HWY_AVX2)
#endif

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

using V = VectorLanes::V;
using U16Tag = hn::Repartition<uint16_t, U32Tag>;
using I16Tag = hn::RebindToSigned<U16Tag>;
using Words = hn::Vec<U16Tag>;
inline constexpr U16Tag kU16{};
inline constexpr I16Tag kI16{};

#if DLSIM_AVX3

// The element of LowWords and HighWords that is at each place: in order, first a, then b.
alignas(64) inline constexpr uint16_t kLowWords[32] = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20,
                                                       22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 42,
                                                       44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
alignas(64) inline constexpr uint16_t kHighWords[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                        23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                        45, 47, 49, 51, 53, 55, 57, 59, 61, 63};

HWY_INLINE Words LowWords(V a, V b) {
  return Words{_mm512_permutex2var_epi16(a.raw, _mm512_load_si512(kLowWords), b.raw)};
}
HWY_INLINE Words HighWords(V a, V b) {
  return Words{_mm512_permutex2var_epi16(a.raw, _mm512_load_si512(kHighWords), b.raw)};
}
HWY_INLINE Words InOrder(Words words) { return words; }

#else

// Elsewhere the words of a and b alternate until the result is put in order.
HWY_INLINE Words LowWords(V a, V b) {
  return hn::OddEven(hn::BitCast(kU16, hn::ShiftLeft<16>(b)), hn::BitCast(kU16, a));
}
HWY_INLINE Words HighWords(V a, V b) {
  return hn::OddEven(hn::BitCast(kU16, b), hn::BitCast(kU16, hn::ShiftRight<16>(a)));
}
HWY_INLINE Words InOrder(Words words) {
  const hn::Repartition<uint8_t, U16Tag> bytes;
  alignas(16) static constexpr uint8_t kEvenThenOdd[16] = {0, 1, 4, 5, 8,  9,  12, 13,
                                                           2, 3, 6, 7, 10, 11, 14, 15};
  const auto order = hn::LoadDup128(bytes, kEvenThenOdd);
  const auto blocks = hn::TableLookupBytes(hn::BitCast(bytes, words), order);
#if HWY_TARGET == HWY_AVX2
  return Words{_mm256_permute4x64_epi64(blocks.raw, _MM_SHUFFLE(3, 1, 2, 0))};
#else
  return hn::BitCast(kU16, blocks);
#endif
}

#endif  // DLSIM_AVX3

// Lanes of the longest vector.
inline constexpr size_t kMaxLanes = 16;

HWY_INLINE size_t WordCount() { return hn::Lanes(kU16); }

HWY_INLINE Words SetWords(uint16_t word) { return hn::Set(kU16, word); }

// Words without their top bits, so that signed and unsigned order agree.
HWY_INLINE Words WithoutSigns(Words words) { return hn::And(words, SetWords(0x7FFF)); }

// Larger of two words each, and whether a word is `limit` or more; for words below 0x8000.
HWY_INLINE Words MaxWords(Words a, Words b) {
  return hn::BitCast(kU16, hn::Max(hn::BitCast(kI16, a), hn::BitCast(kI16, b)));
}
HWY_INLINE bool AnyReaches(Words words, uint16_t limit) {
  const auto below = hn::Set(kI16, static_cast<int16_t>(limit - 1));
  return !hn::AllFalse(kI16, hn::Gt(hn::BitCast(kI16, words), below));
}

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET != HWY_SCALAR

#endif  // include guard per target
