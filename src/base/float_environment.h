// SPDX-License-Identifier: Apache-2.0
// The floating-point environment of a scope. Each thread has its own.
#pragma once

#include <cfenv>
#include <cstdint>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

namespace dlsim {

// Gives a scope the default environment: to nearest even, subnormals kept, exceptions masked.
// Callers may flush subnormals (Python programs do). Exception flags may stay raised.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment();
  ~DefaultFloatEnvironment();
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
#ifdef __x86_64__
  static constexpr uint32_t kDefault = 0x1F80;
  static constexpr uint32_t kExceptionFlags = 0x3F;
  bool differs() const { return (saved_ & ~kExceptionFlags) != kDefault; }

  uint32_t saved_;
#else
  std::fenv_t saved_;
#endif
};

// Makes arithmetic round in one of <cfenv>'s directions, within the default environment. The
// arithmetic must be in functions that are not inlined: compilers know nothing of directions.
class RoundingDirection {
 public:
  explicit RoundingDirection(int direction);
  ~RoundingDirection();
  RoundingDirection(const RoundingDirection&) = delete;
  RoundingDirection& operator=(const RoundingDirection&) = delete;
};

#ifdef __x86_64__

// Vector instructions obey MXCSR alone. Reading it is cheap and writing is not, so it is written
// only where something but the flags differs from the default.
inline DefaultFloatEnvironment::DefaultFloatEnvironment() : saved_(_mm_getcsr()) {
  if (differs()) _mm_setcsr(kDefault);
}
inline DefaultFloatEnvironment::~DefaultFloatEnvironment() {
  if (differs()) _mm_setcsr(saved_);
}

inline RoundingDirection::RoundingDirection(int direction) {
  const uint32_t rounding = direction == FE_TOWARDZERO ? _MM_ROUND_TOWARD_ZERO
                            : direction == FE_UPWARD   ? _MM_ROUND_UP
                            : direction == FE_DOWNWARD ? _MM_ROUND_DOWN
                                                       : _MM_ROUND_NEAREST;
  _mm_setcsr((_mm_getcsr() & ~uint32_t{_MM_ROUND_MASK}) | rounding);
}
inline RoundingDirection::~RoundingDirection() {
  _mm_setcsr(_mm_getcsr() & ~uint32_t{_MM_ROUND_MASK});
}

#else

inline DefaultFloatEnvironment::DefaultFloatEnvironment() {
  std::fegetenv(&saved_);
  std::fesetenv(FE_DFL_ENV);
}
inline DefaultFloatEnvironment::~DefaultFloatEnvironment() { std::fesetenv(&saved_); }

inline RoundingDirection::RoundingDirection(int direction) { std::fesetround(direction); }
inline RoundingDirection::~RoundingDirection() { std::fesetround(FE_TONEAREST); }

#endif

}  // namespace dlsim
