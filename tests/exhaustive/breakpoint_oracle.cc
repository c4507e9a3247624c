// SPDX-License-Identifier: Apache-2.0
#include "tests/exhaustive/breakpoint_oracle.h"

#include <mpfr.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace dlsim {
namespace {

// An MPFR number, wide enough that sums and midpoints of values are exact.
class Real {
 public:
  Real() { mpfr_init2(number_, kBits); }
  Real(const Real& other) : Real() { mpfr_set(number_, other.number_, MPFR_RNDN); }
  Real& operator=(const Real&) = delete;
  ~Real() { mpfr_clear(number_); }

  operator mpfr_ptr() { return number_; }
  operator mpfr_srcptr() const { return number_; }

 private:
  static constexpr mpfr_prec_t kBits = 512;
  mpfr_t number_;
};

// The value that a magnitude code has by the definition of the format, were the exponent range
// unbounded above.
Real ValueOfCode(const Format& f, uint32_t code) {
  const uint32_t ones = 1u << f.mantissa_bits;
  const int exponent = static_cast<int>(code / ones);
  const uint32_t fraction = code % ones;
  Real value;
  if (exponent == 0 && f.denormals == Denormals::kGradual) {
    mpfr_set_ui_2exp(value, fraction, 1 - f.bias - f.mantissa_bits, MPFR_RNDN);
  } else if (code == 0) {
    mpfr_set_zero(value, 1);
  } else {
    mpfr_set_ui_2exp(value, ones + fraction, exponent - f.bias - f.mantissa_bits, MPFR_RNDN);
  }
  return value;
}

Real Midpoint(const Real& a, const Real& b) {
  Real middle;
  mpfr_add(middle, a, b, MPFR_RNDN);
  mpfr_div_2ui(middle, middle, 1, MPFR_RNDN);
  return middle;
}

// The least float32 magnitude that is not below a number, as bits; infinity if there is none.
uint32_t FirstFrom(const Real& number) {
  return std::bit_cast<uint32_t>(mpfr_get_flt(number, MPFR_RNDU));
}

// The least float32 magnitude above a number.
uint32_t FirstAbove(const Real& number) {
  const uint32_t first = FirstFrom(number);
  return mpfr_cmp_d(number, std::bit_cast<float>(first)) == 0 ? first + 1 : first;
}

// A rounding mode as it acts on magnitudes of one sign.
enum class Direction { kDown, kUp, kNearestEven, kNearestAway };

Direction DirectionOf(Rounding rounding, bool negative) {
  switch (rounding) {
    case Rounding::kNearestEven:
      return Direction::kNearestEven;
    case Rounding::kNearestAway:
      return Direction::kNearestAway;
    case Rounding::kTowardPositive:
      return negative ? Direction::kDown : Direction::kUp;
    case Rounding::kTowardNegative:
      return negative ? Direction::kUp : Direction::kDown;
    default:  // stochastic rounding draws from the code below
      return Direction::kDown;
  }
}

// The first float32 magnitude that rounds to `code` rather than to the code below it.
uint32_t FirstRoundedTo(const Format& f, uint32_t code, Direction direction) {
  if (code == 0) return 0;
  const Real below = ValueOfCode(f, code - 1), value = ValueOfCode(f, code);
  switch (direction) {
    case Direction::kDown:
      return FirstFrom(value);
    case Direction::kUp:
      return FirstAbove(below);
    case Direction::kNearestAway:
      return FirstFrom(Midpoint(below, value));
    case Direction::kNearestEven:  // a tie goes to the even one of two neighbors
      return code % 2 == 0 ? FirstFrom(Midpoint(below, value)) : FirstAbove(Midpoint(below, value));
  }
  return 0;
}

}  // namespace

BreakpointOracle::BreakpointOracle(const Conversion& conversion)
    : format_(conversion.format), stochastic_(conversion.rounding == Rounding::kStochastic) {
  const uint32_t codes = 1u << (format_.exponent_bits + format_.mantissa_bits);
  const uint32_t ones = 1u << format_.mantissa_bits;
  const bool ieee = format_.specials == Specials::kIeee;
  const uint32_t beyond = ieee ? codes - ones : codes - 1;  // infinity, else the only NaN
  max_code_ = beyond - 1;
  infinity_code_ = conversion.overflow == Overflow::kSaturate ? max_code_ : beyond;
  sign_code_ = codes;
  zero_gap_ = format_.denormals == Denormals::kNone;
  for (uint32_t code = 0; code <= max_code_ + 1; ++code) {
    value_.push_back(mpfr_get_d(ValueOfCode(format_, code), MPFR_RNDN));
  }
  for (const bool negative : {false, true}) sides_[negative] = MakeSide(conversion, negative);
}

BreakpointOracle::Side BreakpointOracle::MakeSide(const Conversion& conversion,
                                                  bool negative) const {
  const Direction direction = DirectionOf(conversion.rounding, negative);
  const bool flushes = conversion.subnormals == Subnormals::kFlushToZero && !zero_gap_;
  const bool clamps = direction == Direction::kDown && !stochastic_;
  const uint32_t min_normal = 1u << format_.mantissa_bits;
  Side side;
  for (uint32_t code = 0; code <= max_code_ + 1; ++code) {
    side.begin.push_back(FirstRoundedTo(format_, code, direction));
    side.result.push_back(flushes && code < min_normal ? 0 : code);
  }
  side.begin.push_back(kInfinity);
  side.result.back() = clamps ? max_code_ : infinity_code_;
  uint32_t rounded = 0;
  for (uint32_t magnitude = 0; magnitude < kInfinity; magnitude += 1u << kGuideShift) {
    while (magnitude >= side.begin[rounded + 1]) ++rounded;
    side.guide.push_back(rounded);
  }
  return side;
}

// Sign and the mantissa's top bits stay, and the quiet bit is set.
uint32_t BreakpointOracle::NanCode(uint32_t magnitude) const {
  if (format_.specials == Specials::kSingleNan) return sign_code_ - 1;
  const uint32_t quiet = magnitude | 0x00400000;
  const uint32_t mantissa = (quiet % (1u << 23)) / (1u << (23 - format_.mantissa_bits));
  return (max_code_ + 1) | mantissa;
}

// The product is exact, and the quotient where the gap is a power of two. Else it is a fraction of
// denominator 2^9 + 1, too far from any whole number for double's rounding to reach it.
static double ScaledDistance(double x, double below, double above) {
  return std::floor((x - below) * 0x1p32 / (above - below));
}

// Adding the word to the dropped bits carries if the word is among the largest; where there are no
// dropped bits, below the smallest value of a format without subnormals, the smallest words round
// up.
bool BreakpointOracle::RoundsUp(size_t rounded, uint32_t magnitude, uint32_t word) const {
  if (rounded > max_code_) return false;
  const double x = std::bit_cast<float>(magnitude);
  const double words = ScaledDistance(x, value_[rounded], value_[rounded + 1]);
  return zero_gap_ && rounded == 0 ? word < words : 0x1p32 - words <= word;
}

uint64_t BreakpointOracle::WordsThatRoundUp(uint32_t magnitude) const {
  const uint32_t below = static_cast<uint32_t>(Find(sides_[0], magnitude));
  if (below > max_code_) return 0;
  const Real low = ValueOfCode(format_, below), high = ValueOfCode(format_, below + 1);
  Real distance, gap;
  mpfr_set_flt(distance, std::bit_cast<float>(magnitude), MPFR_RNDN);
  mpfr_sub(distance, distance, low, MPFR_RNDN);
  mpfr_mul_2ui(distance, distance, 32, MPFR_RNDN);
  mpfr_sub(gap, high, low, MPFR_RNDN);
  mpfr_div(distance, distance, gap, MPFR_RNDD);
  return mpfr_get_uj(distance, MPFR_RNDD);
}

std::vector<uint32_t> BreakpointOracle::Breakpoints() const {
  std::vector<uint32_t> magnitudes;
  for (const Side& side : sides_) {
    magnitudes.insert(magnitudes.end(), side.begin.begin(), side.begin.end());
  }
  for (uint32_t code = 0; code <= max_code_ + 1; ++code) {
    magnitudes.push_back(FirstFrom(ValueOfCode(format_, code)));
  }
  std::sort(magnitudes.begin(), magnitudes.end());
  magnitudes.erase(std::unique(magnitudes.begin(), magnitudes.end()), magnitudes.end());
  return magnitudes;
}

uint32_t BreakpointOracle::Decode(uint32_t magnitude_code) const {
  if (magnitude_code <= max_code_) return FirstFrom(ValueOfCode(format_, magnitude_code));
  const bool ieee = format_.specials == Specials::kIeee;
  if (ieee && magnitude_code == max_code_ + 1) return kInfinity;
  const uint32_t mantissa = magnitude_code % (1u << format_.mantissa_bits);
  return kInfinity | 0x00400000 | (mantissa << (23 - format_.mantissa_bits));
}

}  // namespace dlsim
