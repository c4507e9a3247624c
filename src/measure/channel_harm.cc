// SPDX-License-Identifier: Apache-2.0
#include "src/measure/channel_harm.h"

#include <algorithm>
#include <bit>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/measure/channel_harm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/highway.h"
#include "src/codec/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F64Tag = hn::CappedTag<double, HarmSums::kBehind>;
using I64Tag = hn::RebindToSigned<F64Tag>;
using U64Tag = hn::RebindToUnsigned<F64Tag>;

// The magnitudes of halves of binades, in units of their last places.
template <class D>
struct HalfBinades {
  hn::Vec<D> count, sum, squares;

  // The squared errors if they become `value`.
  HWY_INLINE hn::Vec<D> ErrorsAt(double value) const {
    constexpr D d;
    const auto moved =
        hn::Sub(hn::Mul(hn::Set(d, value * value), count), hn::Mul(hn::Set(d, 2 * value), sum));
    return hn::Max(hn::Add(moved, squares), hn::Zero(d));
  }
};

// Sets the rows from the i-th binade on. `units` are the squares of the values of last places.
template <class D>
HWY_INLINE void SetRows(const HalfBinades<D>& low, const HalfBinades<D>& high,
                        const double* HWY_RESTRICT units, size_t i, Binades& binades) {
  constexpr double kLower = 0x1p23, kUpper = 0x1p24;  // ends of a binade in its last places
  constexpr D d;
  const auto unit = hn::LoadU(d, units + i);
  const auto high_to_upper = high.ErrorsAt(kUpper);
  const auto at = static_cast<ptrdiff_t>(i);
  hn::StoreU(hn::Add(low.count, high.count), d, binades.counts.At(at));
  hn::StoreU(hn::Mul(hn::Add(low.squares, high.squares), unit), d, binades.squares.At(at));
  hn::StoreU(hn::Mul(hn::Add(low.ErrorsAt(kLower), high_to_upper), unit), d,
             binades.to_nearest.At(at));
  hn::StoreU(hn::Mul(hn::Add(low.ErrorsAt(kUpper), high_to_upper), unit), d,
             binades.to_upper.At(at));
}

HWY_INLINE HalfBinades<F64Tag> HalvesOf(hn::Vec<I64Tag> packed, hn::Vec<I64Tag> squares) {
  constexpr int64_t kSignificands = (int64_t{1} << CountRecord::kCountShift) - 1;
  constexpr F64Tag d;
  return {hn::ConvertTo(d, hn::ShiftRight<CountRecord::kCountShift>(packed)),
          hn::ConvertTo(d, hn::And(packed, hn::Set(I64Tag(), kSignificands))),
          hn::ConvertTo(d, squares)};
}

// `records` are interleaved: squares and packed sums of the lower half of each binade, then those
// of the upper half.
void FillOnTarget(const int64_t* HWY_RESTRICT records, size_t count,
                  const double* HWY_RESTRICT units, Binades& binades) {
  for (size_t i = 0; i < count; i += hn::Lanes(F64Tag())) {
    hn::Vec<I64Tag> low_squares, low_packed, high_squares, high_packed;
    hn::LoadInterleaved4(I64Tag(), records + 4 * i, low_squares, low_packed, high_squares,
                         high_packed);
    SetRows(HalvesOf(low_packed, low_squares), HalvesOf(high_packed, high_squares), units, i,
            binades);
  }
}

using OneTag = hn::CappedTag<double, 1>;

// Mostly a sum of squares has fewer than 63 bits, and processors convert only signed numbers.
HWY_INLINE HalfBinades<OneTag> HalfOf(const WideSums& sums) {
  constexpr OneTag d;
  const bool is_small = sums.squares >> 63 == 0;
  return {hn::Set(d, static_cast<double>(sums.count)),
          hn::Set(d, static_cast<double>(sums.significands)),
          hn::Set(d, is_small ? static_cast<double>(static_cast<int64_t>(sums.squares))
                              : static_cast<double>(sums.squares))};
}

void FillWideOnTarget(const WideSums* HWY_RESTRICT sums, size_t count,
                      const double* HWY_RESTRICT units, Binades& binades) {
  for (size_t i = 0; i < count; ++i) {
    SetRows(HalfOf(sums[2 * i]), HalfOf(sums[2 * i + 1]), units, i, binades);
  }
}

// Where the quantum is 2^e: what is below its half becomes zero; up to 1.5 of it one quantum; up to
// two of it, two; what is larger lies anywhere between two values.
void AddHarmOnTarget(const Binades& binades, ptrdiff_t first, double quantum_squared_12th,
                     size_t count, uint64_t* HWY_RESTRICT low, uint64_t* HWY_RESTRICT high,
                     double* HWY_RESTRICT worst) {
  constexpr F64Tag d;
  constexpr U64Tag du;
  alignas(64) double spread[hn::MaxLanes(F64Tag())];
  double step = 1;
  for (double& of_lane : spread) {
    of_lane = quantum_squared_12th * step;
    step *= 4;
  }
  auto spread_error = hn::Load(d, spread);
  const auto all = hn::Set(d, binades.count());
  const auto share = hn::Set(d, 1 / binades.sum_of_squares());
  for (size_t k = 0; k < count; k += hn::Lanes(d)) {
    const ptrdiff_t i = first + static_cast<ptrdiff_t>(k);
    const auto near = hn::Add(hn::Add(hn::LoadU(d, binades.squares_below.At(i - 1)),
                                      hn::LoadU(d, binades.to_upper.At(i - 1))),
                              hn::LoadU(d, binades.to_nearest.At(i)));
    const auto above = hn::Sub(all, hn::LoadU(d, binades.counts_below.At(i + 1)));
    const auto errors = hn::Add(near, hn::Mul(above, spread_error));
    const auto at_most_all = hn::Min(hn::Mul(errors, share), hn::Set(d, 1.0));
    const auto harm = hn::IfThenElseZero(hn::FirstN(d, count - k), at_most_all);
    const auto units =
        hn::BitCast(du, hn::ConvertTo(I64Tag(), hn::Mul(harm, hn::Set(d, HarmSums::kUnits))));
    const auto low_units = hn::And(units, hn::Set(du, 0xFFFFFFFF));
    hn::StoreU(hn::Add(hn::LoadU(du, low + k), low_units), du, low + k);
    hn::StoreU(hn::Add(hn::LoadU(du, high + k), hn::ShiftRight<32>(units)), du, high + k);
    hn::StoreU(hn::Max(hn::LoadU(d, worst + k), harm), d, worst + k);
    spread_error = hn::Mul(spread_error, hn::Set(d, step));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dlsim {
namespace {

DLSIM_EXPORT(FillOnTarget);
DLSIM_EXPORT(FillWideOnTarget);
DLSIM_EXPORT(AddHarmOnTarget);

constexpr size_t kMostLanes = HarmSums::kBehind;

// Of a normal number.
constexpr double PowerOfTwo(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

// The square of the last place's value, by binade.
constexpr std::array<double, kBinades + kMostLanes> kUnits = [] {
  std::array<double, kBinades + kMostLanes> units = {};
  for (size_t i = 0; i < kBinades; ++i) units[i] = PowerOfTwo(2 * (static_cast<int>(i) - 150));
  return units;
}();

// Sets what follows from the rows of all `count` binades.
void FinishBinades(size_t count, Binades& binades) {
  const auto end = static_cast<ptrdiff_t>(count);
  for (Binades::Row* const row :
       {&binades.counts, &binades.squares, &binades.to_nearest, &binades.to_upper}) {
    *row->At(end) = 0;
  }
  binades.size = end;
  while (binades.size > 0 && *binades.counts.At(binades.size - 1) == 0) --binades.size;
  double counts = 0, squares = 0;
  for (ptrdiff_t i = 0; i < binades.size; ++i) {
    *binades.counts_below.At(i) = counts;
    *binades.squares_below.At(i) = squares;
    counts += *binades.counts.At(i);
    squares += *binades.squares.At(i);
  }
  for (const ptrdiff_t i : {binades.size, binades.size + 1}) *binades.counts_below.At(i) = counts;
  *binades.squares_below.At(binades.size) = squares;
}

}  // namespace

void FillBinades(std::span<const CountRecords> records, size_t first, Binades& binades) {
  static_assert(kWays == 2);
  alignas(64) std::array<int64_t, 4 * (kBinades + kMostLanes)> merged;
  auto* to = merged.data();
  for (const auto& [one, other] : records) {
    *to++ = static_cast<int64_t>(one.squares + other.squares);
    *to++ = static_cast<int64_t>(one.packed + other.packed);
  }
  std::fill(to, to + 4 * kMostLanes, 0);
  const size_t count = records.size() / 2;
  DLSIM_DISPATCH(FillOnTarget)(merged.data(), count, kUnits.data() + first / 2, binades);
  FinishBinades(count, binades);
}

void FillBinades(std::span<const WideSums> sums, size_t first, Binades& binades) {
  const size_t count = sums.size() / 2;
  DLSIM_DISPATCH(FillWideOnTarget)(sums.data(), count, kUnits.data() + first / 2, binades);
  FinishBinades(count, binades);
}

void AddHarm(const Binades& binades, ptrdiff_t binade, int quantum, size_t count, HarmSums& sums) {
  const auto place = static_cast<size_t>(quantum - kLowestQuantum);
  DLSIM_DISPATCH(AddHarmOnTarget)
  (binades, binade, PowerOfTwo(2 * quantum) / 12, count, sums.low.data() + place,
   sums.high.data() + place, sums.worst.data() + place);
}

}  // namespace dlsim
#endif  // HWY_ONCE
