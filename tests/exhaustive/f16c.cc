// SPDX-License-Identifier: Apache-2.0
#include "tests/exhaustive/f16c.h"

#include <algorithm>
#include <cstddef>

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace dlsim {

#ifdef __x86_64__

// Clang's __builtin_cpu_supports does not know F16C; AVX tells that the system saves the registers.
bool HasF16c() {
  unsigned eax, ebx, ecx = 0, edx;
  return __builtin_cpu_supports("avx") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 &&
         (ecx & bit_F16C) != 0;
}

namespace {

constexpr size_t kLanes = 8;

__attribute__((target("avx,f16c"))) void EncodeLanes(const float* values, uint16_t* codes) {
  const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(values), _MM_FROUND_TO_NEAREST_INT);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), halves);
}

}  // namespace

void EncodeByF16c(std::span<const float> values, std::span<uint16_t> codes) {
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) EncodeLanes(&values[i], &codes[i]);
  float rest[kLanes] = {};
  uint16_t rest_codes[kLanes];
  std::copy(values.begin() + static_cast<ptrdiff_t>(i), values.end(), rest);
  EncodeLanes(rest, rest_codes);
  std::copy_n(rest_codes, values.size() - i, codes.begin() + static_cast<ptrdiff_t>(i));
}

#else

bool HasF16c() { return false; }
void EncodeByF16c(std::span<const float>, std::span<uint16_t>) {}

#endif

}  // namespace dlsim
