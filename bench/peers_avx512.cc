// SPDX-License-Identifier: Apache-2.0
// Compiled for AVX-512 throughout: nothing here may be called before the machine was asked.
#include "bench/peers_avx512.h"

#include <immintrin.h>

#ifdef DLSIM_HAVE_EIGEN
#include <Eigen/Core>
#endif

namespace dlsim::bench {

void EncodeFp16ByHardware(const float* values, size_t count, uint16_t* codes) {
  constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  for (size_t i = 0; i < count; i += 16) {
    const __m256i code = _mm512_cvtps_ph(_mm512_loadu_ps(values + i), kNearestEven);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), code);
  }
}

void DecodeFp16ByHardware(const uint16_t* codes, size_t count, float* values) {
  for (size_t i = 0; i < count; i += 16) {
    const __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
    _mm512_storeu_ps(values + i, _mm512_cvtph_ps(code));
  }
}

#ifdef DLSIM_HAVE_EIGEN

template <class Code>
void EncodeByEigen(const float* values, size_t count, uint16_t* codes) {
  const auto size = static_cast<Eigen::Index>(count);
  const Eigen::Map<const Eigen::ArrayXf> from(values, size);
  Eigen::Map<Eigen::Array<Code, Eigen::Dynamic, 1>> to(reinterpret_cast<Code*>(codes), size);
  to = from.cast<Code>();
}

template <class Code>
void DecodeByEigen(const uint16_t* codes, size_t count, float* values) {
  const auto size = static_cast<Eigen::Index>(count);
  const Eigen::Map<const Eigen::Array<Code, Eigen::Dynamic, 1>> from(
      reinterpret_cast<const Code*>(codes), size);
  Eigen::Map<Eigen::ArrayXf> to(values, size);
  to = from.template cast<float>();
}

void EncodeFp16ByEigen(const float* values, size_t count, uint16_t* codes) {
  EncodeByEigen<Eigen::half>(values, count, codes);
}
void DecodeFp16ByEigen(const uint16_t* codes, size_t count, float* values) {
  DecodeByEigen<Eigen::half>(codes, count, values);
}
void EncodeBf16ByEigen(const float* values, size_t count, uint16_t* codes) {
  EncodeByEigen<Eigen::bfloat16>(values, count, codes);
}
void DecodeBf16ByEigen(const uint16_t* codes, size_t count, float* values) {
  DecodeByEigen<Eigen::bfloat16>(codes, count, values);
}

#endif  // DLSIM_HAVE_EIGEN

}  // namespace dlsim::bench
