// SPDX-License-Identifier: Apache-2.0
#include "dlsim/table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "src/base/parallel.h"
#include "src/table/exact_sum.h"
#include "src/table/tabulate.h"

namespace dlsim {
namespace {

template <class T, size_t kSize>
void AddEach(const std::array<T, kSize>& from, std::array<T, kSize>& to) {
  for (size_t i = 0; i < kSize; ++i) to[i] += from[i];
}

// The order of TensorTable::values.
constexpr auto kComesFirst = [](float a, float b) {
  const auto key = [](float value) { return std::rotl(std::bit_cast<uint32_t>(value), 1); };
  return key(a) < key(b);
};

uint32_t MagnitudeOf(float value) { return std::bit_cast<uint32_t>(value) & ~codec::kSignBit; }

// The exponent of one unit of a binade's squares.
constexpr int SquareUnit(int exponent) { return 2 * (exponent - 23); }

// 2^exponent, a normal float64.
constexpr double PowerOfTwo(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}
static_assert(PowerOfTwo(SquareUnit(kLowestExponent)) == 0x1p-344);

}  // namespace

void BinadeSums::MoveTo(Binade& binade) {
  binade.count += count;
  binade.powers += powers;
  binade.significands += significands;
  AddEach(rounding_up, binade.rounding_up);
  AddEach(tail_sums, binade.tail_sums);
  for (size_t i = 0; i < Binade::kTails; ++i) binade.tail_squares[i] += tail_squares[i];
  uint128_t squares = low_squares;  // of M mod 2^n
  for (size_t i = 0; i <= kBits; ++i) {
    const int n = kFirstBit + static_cast<int>(i);
    // The leading bit is set in all.
    const uint128_t with_bit = i < kBits ? set[i] : count;
    const uint128_t rest = i < kBits ? below[i] : significands - (count << 23);
    binade.errors[i] += squares + (with_bit << (2 * n)) - (rest << (n + 1));
    squares += (with_bit << (2 * n)) + (rest << (n + 1));
  }
  binade.squares += squares;
  *this = {};
}

void Binade::Add(const Binade& other) {
  count += other.count;
  powers += other.powers;
  significands += other.significands;
  squares += other.squares;
  AddEach(other.rounding_up, rounding_up);
  AddEach(other.tail_sums, tail_sums);
  AddEach(other.tail_squares, tail_squares);
  AddEach(other.errors, errors);
}

namespace {

constexpr uint64_t Square(uint32_t m) { return uint64_t{m} * m; }

}  // namespace

// The groups of a list of values.
class ValueGroups {
 public:
  // Takes another list.
  void Find(std::span<const float> values) {
    values_ = values;
    count_ = values.empty() ? 0 : FindGroups(values, groups_.data());
    known_ = false;
    summed_ = 0;
  }

  size_t size() const { return count_; }
  const ValueGroup& operator[](size_t g) const { return groups_[g]; }

  // Returns the sum of squared distances to the nearest multiples, at most 2^57.
  uint64_t Errors(size_t g, int quantum) {
    static_assert(TensorTable::kMostValues <= 1u << 9);
    if (!known_) {
      SumErrors(values_.data(), std::span(groups_).first(count_), errors_.data());
      known_ = true;
    }
    const auto place = static_cast<size_t>(std::min(quantum, 2) - Binade::kFirstQuantum);
    return errors_[g][place % 2][place / 2];
  }

  // Whether groups can be summed together.
  bool IsNarrow() const {
    return groups_[count_ - 1].exponent - groups_[0].exponent <= kMostBinades;
  }

  // Returns the same of the groups from `begin` to before `end`, in units of the first.
  uint128_t Errors(size_t begin, size_t end, int quantum) {
    const int q = std::min(quantum, 2) - Binade::kFirstQuantum;
    std::array<uint128_t, kExponents + 1>& sums = sums_[static_cast<size_t>(q)];
    if ((summed_ >> q & 1) == 0) {
      for (size_t g = 0; g < count_; ++g) {
        sums[g + 1] = sums[g] + (uint128_t{Errors(g, quantum)} << UnitOf(g));
      }
      summed_ = static_cast<uint16_t>(summed_ | 1u << q);
    }
    return (sums[end] - sums[begin]) >> UnitOf(begin);
  }

  uint64_t CountOf(size_t begin, size_t end) const {
    return groups_[end - 1].begin + groups_[end - 1].count - groups_[begin].begin;
  }

  // Returns the sum of what `of` makes of each significand of a group.
  template <class Of>
  uint64_t Sum(size_t g, const Of& of) const {
    uint64_t sum = 0;
    for (const float value : values_.subspan(groups_[g].begin, groups_[g].count)) {
      sum += of(groups_[g].SignificandOf(value));
    }
    return sum;
  }

 private:
  static constexpr int kMostBinades = 32;  // sums of Errors() then fit 128 bits

  // The exponent of a group's squares, relative to those of the first.
  int UnitOf(size_t g) const { return 2 * (groups_[g].exponent - groups_[0].exponent); }

  std::span<const float> values_;
  size_t count_ = 0;
  std::array<ValueGroup, TensorTable::kMostValues> groups_;
  bool known_ = false;  // the errors
  std::array<GroupErrors, TensorTable::kMostValues> errors_;
  // By quantum, of those that are set in `summed_`: the sums over the groups before each.
  uint16_t summed_ = 0;
  std::array<std::array<uint128_t, kExponents + 1>, Binade::kQuanta + 1> sums_ = {};
};

namespace {

// That of the calling thread.
ValueGroups& GroupsOf(std::span<const float> values) {
  static thread_local ValueGroups groups;
  groups.Find(values);
  return groups;
}

double SumOfSquares(const TensorTable& table) {
  ExactSum sum;
  for (const Binade& binade : table.binades) sum.Add(binade.squares, SquareUnit(binade.exponent));
  ValueGroups& groups = GroupsOf(table.values);
  for (size_t g = 0; g < groups.size(); ++g) {
    sum.Add(groups.Sum(g, Square), SquareUnit(groups[g].exponent));
  }
  return sum.Value();
}

// Sets what the list of values says of the largest ones.
void SetEnds(TensorTable& table) {
  table.absmax = table.values.empty() ? 0 : std::fabs(table.values.back());
  const auto positive = std::find_if(table.values.rbegin(), table.values.rend(),
                                     [](float value) { return value > 0; });
  table.largest = positive == table.values.rend() ? 0 : *positive;
}

// Turns values into binades.
void Spread(TensorTable& table) {
  const std::vector<float> values = std::exchange(table.values, {});
  const ValueGroups& groups = GroupsOf(values);
  for (size_t g = 0; g < groups.size(); ++g) {
    BinadeSums sums;
    groups.Sum(g, [&](uint32_t m) { return sums.Add(m), 0; });
    Binade& binade = table.binades.emplace_back();
    binade.exponent = groups[g].exponent;
    sums.MoveTo(binade);
  }
}

// Adds sorted lists of what has a key to each other.
template <class Item, class KeyOf, class AddTo>
void Merge(const std::vector<Item>& from, std::vector<Item>& to, const KeyOf& key,
           const AddTo& add) {
  if (from.empty()) return;
  std::vector<Item> both;
  both.reserve(to.size() + from.size());
  auto a = to.begin();
  for (const Item& item : from) {
    while (a != to.end() && key(*a) < key(item)) both.push_back(std::move(*a++));
    both.push_back(item);
    if (a != to.end() && key(*a) == key(item)) add(*a++, both.back());
  }
  both.insert(both.end(), std::make_move_iterator(a), std::make_move_iterator(to.end()));
  to = std::move(both);
}

}  // namespace

void TensorTable::Add(TensorTable piece) {
  if (elements == 0 && channels.empty()) {
    *this = std::move(piece);
    return;
  }
  const bool few =
      binades.empty() && piece.binades.empty() && elements + piece.elements <= kMostValues;
  if (few) {
    const auto middle = static_cast<std::ptrdiff_t>(values.size());
    values.insert(values.end(), piece.values.begin(), piece.values.end());
    std::inplace_merge(values.begin(), values.begin() + middle, values.end(), kComesFirst);
  } else {
    Spread(piece);
    Spread(*this);
    Merge(
        piece.binades, binades, [](const Binade& binade) { return binade.exponent; },
        [](const Binade& other, Binade& into) { into.Add(other); });
  }
  Merge(
      piece.channels, channels, [](const auto& channel) { return channel.first; },
      [](const auto& other, auto& into) { into.second += other.second; });
  elements += piece.elements;
  zeros += piece.zeros;
  nan += piece.nan;
  inf += piece.inf;
  absmax = std::max(absmax, piece.absmax);
  largest = std::max(largest, piece.largest);
  sum_of_squares = SumOfSquares(*this);
}

TensorStats TensorTable::Inputs() const {
  TensorStats stats;
  stats.elements = elements;
  stats.zeros = zeros;
  stats.nan = nan;
  stats.inf = inf;
  stats.absmax = absmax;
  stats.sum_of_squares = sum_of_squares;
  return stats;
}

std::optional<TensorTable> TensorTable::Times(float mantissa) const {
  if (!binades.empty()) return std::nullopt;
  TensorTable product = *this;
  product.channels.clear();
  for (float& value : product.values) value *= mantissa;
  while (!product.values.empty() && std::isinf(product.values.back())) {
    product.values.pop_back();
    ++product.inf;
  }
  SetEnds(product);
  product.sum_of_squares = SumOfSquares(product);
  return product;
}

TensorTable TableOf(TableSums& sums) {
  TensorTable table;
  table.zeros = std::exchange(sums.zeros, 0);
  table.nan = std::exchange(sums.nan, 0);
  table.inf = std::exchange(sums.inf, 0);
  table.absmax = std::bit_cast<float>(std::exchange(sums.absmax, 0));
  table.largest = std::bit_cast<float>(std::exchange(sums.largest, 0));
  table.elements = table.zeros + table.nan + table.inf;
  for (size_t i = 0; i < kExponents; ++i) {
    if (sums.binades[i].count == 0) continue;
    Binade& binade = table.binades.emplace_back();
    binade.exponent = kLowestExponent + static_cast<int>(i);
    sums.binades[i].MoveTo(binade);
    table.elements += binade.count;
  }
  table.sum_of_squares = SumOfSquares(table);
  return table;
}

namespace {

// Values of which the keys tell the order of TensorTable::values.
class ValueSorter {
 public:
  void Add(float value) { from_[count_++] = std::rotl(std::bit_cast<uint32_t>(value), 1); }

  // Returns the values, sorted: few at once, many byte by byte of their keys. Empty then.
  std::vector<float> Take() {
    constexpr size_t kFew = 192;
    if (count_ <= kFew) {
      SortFew({from_, count_});
    } else {
      for (int shift = 0; shift < 32; shift += 8) {
        std::array<uint32_t, 257> places = {};
        for (size_t i = 0; i < count_; ++i) ++places[(from_[i] >> shift & 255) + 1];
        for (size_t digit = 1; digit < places.size(); ++digit) places[digit] += places[digit - 1];
        for (size_t i = 0; i < count_; ++i) to_[places[from_[i] >> shift & 255]++] = from_[i];
        std::swap(from_, to_);
      }
    }
    std::vector<float> values(std::exchange(count_, 0));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = std::bit_cast<float>(std::rotr(from_[i], 1));
    }
    return values;
  }

 private:
  std::array<std::array<uint32_t, TensorTable::kMostValues>, 2> keys_;
  uint32_t *from_ = keys_[0].data(), *to_ = keys_[1].data();
  size_t count_ = 0;
};

}  // namespace

struct Tabulator::State {
  // Values that wait: of few no sums are made.
  std::vector<float> few;
  TableSums sums;
  uint64_t in_sums = 0;  // values since the last of Move
  TensorTable moved;
  uint64_t elements = 0;

  static constexpr uint64_t kMostInSums = uint64_t{1} << 30;

  // Moves what the sums hold to the table.
  void Move() {
    moved.Add(TableOf(sums));
    in_sums = 0;
  }
};

Tabulator::Tabulator() : state_(std::make_unique<State>()) {}
Tabulator::~Tabulator() = default;

void Tabulator::Add(std::span<const float> values) {
  State& state = *state_;
  if (state.elements + values.size() <= TensorTable::kMostValues) {
    state.few.insert(state.few.end(), values.begin(), values.end());
    state.elements += values.size();
    return;
  }
  AddToSums(std::exchange(state.few, {}), state.sums);
  state.elements += values.size();
  while (!values.empty()) {
    const size_t count = std::min<uint64_t>(values.size(), State::kMostInSums - state.in_sums);
    AddToSums(values.first(count), state.sums);
    state.in_sums += count;
    values = values.subspan(count);
    if (state.in_sums == State::kMostInSums) state.Move();
  }
}

TensorTable Tabulator::Take() {
  State& state = *state_;
  const uint64_t elements = std::exchange(state.elements, 0);
  if (elements > TensorTable::kMostValues) {
    state.Move();
    return std::exchange(state.moved, {});
  }
  static thread_local ValueSorter sorter;
  TensorTable table;
  table.elements = elements;
  for (const float value : state.few) {
    const uint32_t magnitude = MagnitudeOf(value);
    if (magnitude >= codec::kInfinityBits) {
      ++(magnitude == codec::kInfinityBits ? table.inf : table.nan);
    } else if (magnitude == 0) {
      ++table.zeros;
    } else {
      sorter.Add(value);
    }
  }
  state.few.clear();
  table.values = sorter.Take();
  SetEnds(table);
  table.sum_of_squares = SumOfSquares(table);
  return table;
}

TensorTable Tabulate(std::span<const float> values) {
  const size_t blocks = (values.size() + kBlockElements - 1) / kBlockElements;
  if (blocks <= 1) {
    Tabulator tabulator;
    tabulator.Add(values);
    return tabulator.Take();
  }
  std::vector<TensorTable> pieces(blocks);
  ParallelForBlocks(values.size(), [&](size_t begin, size_t count) {
    static thread_local Tabulator tabulator;
    tabulator.Add(values.subspan(begin, count));
    pieces[begin / kBlockElements] = tabulator.Take();
  });
  TensorTable table = std::move(pieces.front());
  for (size_t i = 1; i < blocks; ++i) table.Add(std::move(pieces[i]));
  return table;
}

namespace {

using Grid = TableQuestion::Grid;

// The least and the greatest exponent of scaled binades whose values all become normal ones.
int LeastNormal(const Grid& grid) {
  return std::max(grid.lowest + (grid.gradual ? 0 : 1),
                  std::numeric_limits<float>::min_exponent - 1);
}
int MostNormal(const Grid& grid) {
  return std::min(grid.highest, std::numeric_limits<float>::max_exponent - 1) - 1;
}

// Whether values, and what scaling makes of them, become normal values of float32 and the format.
bool IsNormal(const Grid& grid, int log2_scale, ExponentRange range) {
  return range.lowest >= std::numeric_limits<float>::min_exponent - 1 &&
         range.lowest + log2_scale >= LeastNormal(grid) &&
         range.highest + log2_scale <= MostNormal(grid);
}

// The columns of a binade.
class BinadeColumns {
 public:
  explicit BinadeColumns(const Binade& binade) : binade_(binade) {}

  static constexpr int kFewestTailBits = Binade::kFewestTailBits;
  int exponent() const { return binade_.exponent; }
  uint64_t count() const { return binade_.count; }
  uint64_t powers() const { return binade_.powers; }
  uint128_t significands() const { return binade_.significands; }
  uint128_t squares() const { return binade_.squares; }
  uint64_t RoundingUp(int bits) const { return binade_.rounding_up[Index(bits - 1)]; }
  uint128_t TailSum(int bits) const { return binade_.tail_sums[Index(bits - kFewestTailBits)]; }
  uint128_t TailSquares(int bits) const {
    return binade_.tail_squares[Index(bits - kFewestTailBits)];
  }
  uint128_t Errors(int quantum) const {
    return binade_.errors[Index(quantum - Binade::kFirstQuantum)];
  }

 private:
  static size_t Index(int i) { return static_cast<size_t>(i); }

  const Binade& binade_;
};

// The same of a group of values, summed when it is asked for; or of several, in units of the first,
// which have a count and errors only.
class ValueColumns {
 public:
  ValueColumns(ValueGroups& groups, size_t begin, size_t end)
      : groups_(groups), g_(begin), end_(end) {}

  static constexpr int kFewestTailBits = Binade::kFewestTailBits;
  int exponent() const { return groups_[g_].exponent; }
  uint64_t count() const { return groups_.CountOf(g_, end_); }
  uint64_t powers() const {
    return Sum([](uint32_t m) { return m == 1u << 23 ? 1 : 0; });
  }
  uint128_t significands() const {
    return Sum([](uint32_t m) { return m; });
  }
  uint128_t squares() const { return Errors(2); }
  uint64_t RoundingUp(int bits) const {
    return Sum([least = Least(bits)](uint32_t m) { return m >= least ? 1 : 0; });
  }
  uint128_t TailSum(int bits) const {
    return Sum([least = Least(bits)](uint32_t m) { return m >= least ? (1u << 24) - m : 0; });
  }
  uint128_t TailSquares(int bits) const {
    return Sum(
        [least = Least(bits)](uint32_t m) { return Square(m >= least ? (1u << 24) - m : 0); });
  }
  uint128_t Errors(int quantum) const {
    return end_ == g_ + 1 ? groups_.Errors(g_, quantum) : groups_.Errors(g_, end_, quantum);
  }

 private:
  static uint32_t Least(int bits) { return (1u << 24) - (1u << (23 - bits)); }

  template <class Of>
  uint64_t Sum(const Of& of) const {
    return groups_.Sum(g_, of);
  }

  ValueGroups& groups_;
  size_t g_, end_;
};

// What is found of a table, binade by binade.
class Answer {
 public:
  // `fits`: the largest value does not overflow.
  Answer(const Grid& grid, int log2_scale, bool fits)
      : grid_(grid), log2_scale_(log2_scale), fits_(fits) {}

  // What becomes of the values of a binade.
  enum class Kind : uint8_t { kUntold, kLost, kSmall, kNormal, kAtTop, kLarge };
  Kind KindOf(int exponent) const {
    const int scaled = exponent + log2_scale_;
    if (!grid_.gradual && scaled < grid_.lowest + 1) return Kind::kUntold;
    const int quantum = grid_.QuantumAt(scaled);
    if (quantum > 1 || (quantum == 1 && grid_.flushes)) return Kind::kLost;
    // Scaling to a subnormal of float32 rounds.
    if (log2_scale_ < 0 && scaled < -126) return Kind::kUntold;
    if (scaled < grid_.lowest) return Kind::kSmall;
    if (scaled > grid_.highest) return Kind::kLarge;
    if (scaled < grid_.highest || fits_) return Kind::kNormal;
    return grid_.infinity ? Kind::kAtTop : Kind::kUntold;
  }

  // The exponent before which binades of a kind can be added together; none if they cannot.
  int EndOf(Kind kind) const {
    if (kind == Kind::kLost) return grid_.lowest - grid_.bits + grid_.flushes - log2_scale_;
    if (kind == Kind::kNormal) return grid_.highest + fits_ - log2_scale_;
    const bool counts = kind == Kind::kLarge && !grid_.saturates;
    return counts ? std::numeric_limits<int>::max() : std::numeric_limits<int>::min();
  }

  // Returns false if the columns do not tell.
  template <class Columns>
  bool Add(const Columns& binade) {
    const int scaled = binade.exponent() + log2_scale_;
    const int quantum = grid_.QuantumAt(scaled);
    const Kind kind = KindOf(binade.exponent());
    if (kind == Kind::kUntold) return false;
    if (kind == Kind::kLost) return AddLost(binade);
    if (kind == Kind::kSmall) return AddSmall(binade, scaled, quantum);
    if (kind == Kind::kLarge) return AddLarge(binade, scaled);
    const uint64_t over = kind == Kind::kAtTop ? binade.RoundingUp(grid_.bits) : 0;
    errors_.Add(binade.Errors(quantum), SquareUnit(binade.exponent()));
    if (over == 0) return true;
    if (grid_.bits < Columns::kFewestTailBits) return false;
    overflow_ += over;
    const int unit = SquareUnit(binade.exponent());
    const uint128_t tail = binade.TailSquares(grid_.bits);
    errors_.Subtract(tail, unit);
    if (!grid_.saturates) return true;
    // To the largest value, one quantum below the power of two.
    const uint128_t spacing = uint128_t{1} << (24 - grid_.bits);
    errors_.Add(over * spacing * spacing + tail, unit);
    errors_.Subtract(2 * spacing * binade.TailSum(grid_.bits), unit);
    return true;
  }

  void WriteTo(TensorStats& stats) const {
    stats.underflow = underflow_;
    stats.subnormal = subnormal_;
    stats.overflow = overflow_;
    stats.nonfinite_outputs = stats.nan + (grid_.saturates ? 0 : stats.inf + overflow_);
    stats.error_sum_of_squares = errors_.Value();
    stats.underflow_sum_of_squares =
        underflow_ == stats.nonzero_finite() ? stats.sum_of_squares : lost_.Value();
  }

 private:
  // All become zero.
  template <class Columns>
  bool AddLost(const Columns& binade) {
    underflow_ += binade.count();
    const uint128_t squares = binade.squares();
    errors_.Add(squares, SquareUnit(binade.exponent()));
    lost_.Add(squares, SquareUnit(binade.exponent()));
    return true;
  }

  // Below the smallest normal value.
  template <class Columns>
  bool AddSmall(const Columns& binade, int scaled, int quantum) {
    const int unit = SquareUnit(binade.exponent());
    const int bits = grid_.bits - 1;
    const uint64_t normal = scaled == grid_.lowest - 1 ? binade.RoundingUp(bits) : 0;
    if (!grid_.flushes) {
      const uint64_t ties = quantum == 1 ? binade.powers() : 0;
      errors_.Add(binade.Errors(quantum), unit);
      subnormal_ += binade.count() - ties - normal;
      underflow_ += ties;
      lost_.Add(uint128_t{ties} << 46, unit);
      return true;
    }
    underflow_ += binade.count() - normal;
    uint128_t kept = 0;
    if (normal > 0) {
      if (bits < Columns::kFewestTailBits) return false;
      const uint128_t tail = binade.TailSquares(bits);
      kept = (uint128_t{normal} << 48) - (binade.TailSum(bits) << 25) + tail;
      errors_.Add(tail, unit);
    }
    errors_.Add(binade.squares() - kept, unit);
    lost_.Add(binade.squares() - kept, unit);
    return true;
  }

  // Above the largest value.
  template <class Columns>
  bool AddLarge(const Columns& binade, int scaled) {
    overflow_ += binade.count();
    if (!grid_.saturates) return true;
    if (!grid_.infinity) return false;
    const int unit = SquareUnit(binade.exponent()), down = scaled - grid_.highest;
    const uint128_t largest = (uint128_t{1} << 24) - (uint128_t{1} << (24 - grid_.bits));
    errors_.Add(binade.squares(), unit);
    errors_.Subtract(2 * largest * binade.significands(), unit - down);
    errors_.Add(binade.count() * largest * largest, unit - 2 * down);
    return true;
  }

  const Grid& grid_;
  int log2_scale_;
  bool fits_;
  uint64_t underflow_ = 0, subnormal_ = 0, overflow_ = 0;
  ExactSum errors_, lost_;
};

}  // namespace

float MantissaOf(float scale) {
  int exponent = 0;
  return scale > 0 && std::isfinite(scale) ? 2 * std::frexp(scale, &exponent) : 1;
}

const char* WhyNot(NotInTable reason) {
  switch (reason) {
    case NotInTable::kRounding:
      return "it rounds otherwise than to nearest";
    case NotInTable::kScale:
      return "the scale is no power of two";
    case NotInTable::kBits:
      return "the format has more than 11 bits of significand";
    case NotInTable::kEnds:
      return "values lie at an end of the format that tables do not tell";
  }
  return "";
}

std::optional<NotInTable> OutsideTables(const Conversion& conversion, float scale) {
  if (conversion.rounding != Rounding::kNearestEven) return NotInTable::kRounding;
  if (conversion.format.mantissa_bits >= Binade::kMostBits) return NotInTable::kBits;
  if (!(scale > 0) || !std::isfinite(scale) || MantissaOf(scale) != 1) {
    return NotInTable::kScale;
  }
  return std::nullopt;
}

TableQuestion::Grid::Grid(const Conversion& conversion) {
  const Format& format = conversion.format;
  const int exponents = 1 << format.exponent_bits;
  bits = format.mantissa_bits + 1;
  gradual = format.denormals == Denormals::kGradual;
  lowest = (gradual ? 1 : 0) - format.bias;
  infinity = format.specials == Specials::kIeee;
  highest = exponents - (infinity ? 2 : 1) - format.bias;
  flushes = conversion.subnormals == Subnormals::kFlushToZero && gradual;
  saturates = conversion.overflow == Overflow::kSaturate || format.specials == Specials::kFinite;
}

TableQuestion::TableQuestion(const Conversion& conversion, float scale_of)
    : spec(MakeCodecSpec(conversion)),
      scale(scale_of),
      log2_scale(scale > 0 && std::isfinite(scale) ? std::ilogb(scale) : 0),
      outside(OutsideTables(conversion, scale)),
      grid(conversion) {}

struct TableReader::State {
  const TensorTable* table = nullptr;
  ValueGroups groups;

  // Adds all binades to an answer, from the lowest on; returns false if they do not tell.
  bool AddTo(Answer& answer) {
    for (const Binade& binade : table->binades) {
      if (!answer.Add(BinadeColumns(binade))) return false;
    }
    for (size_t g = 0, end = 0; g < groups.size(); g = end) {
      const int last = answer.EndOf(answer.KindOf(groups[g].exponent));
      end = g + 1;
      while (end < groups.size() && groups[end].exponent < last && groups.IsNarrow()) ++end;
      if (!answer.Add(ValueColumns(groups, g, end))) return false;
    }
    return true;
  }

  // Of an empty table, that of no value.
  int HighestExponent() const {
    if (groups.size() > 0) return groups[groups.size() - 1].exponent;
    return table->binades.empty() ? kLowestExponent : table->binades.back().exponent;
  }
};

TableReader::TableReader() : state_(std::make_unique<State>()) {}
TableReader::TableReader(TableReader&&) noexcept = default;
TableReader::~TableReader() = default;

void TableReader::Open(const TensorTable& table) {
  state_->table = &table;
  state_->groups.Find(table.values);
}

std::optional<TensorStats> TableReader::Ask(const TableQuestion& question) {
  if (question.outside) return std::nullopt;
  const TensorTable& table = *state_->table;
  const Grid& grid = question.grid;
  const int top = state_->HighestExponent() + question.log2_scale;
  bool fits = top < grid.highest;
  if (top == grid.highest) {
    const float largest = table.absmax * question.scale;
    const EncodeResult result =
        EncodeWith<Rounding::kNearestEven>(question.spec, std::bit_cast<uint32_t>(largest), 0);
    fits = !result.overflows && std::isfinite(largest);
  }
  Answer answer(grid, question.log2_scale, fits);
  if (!state_->AddTo(answer)) return std::nullopt;
  TensorStats stats = table.Inputs();
  answer.WriteTo(stats);
  return stats;
}

double TableReader::ErrorSquares(const TableQuestion& question) {
  const Grid& grid = question.grid;
  double errors = 0;
  // `sum` gives the errors of a binade at a quantum.
  const auto add = [&](int exponent, const auto& sum) {
    const int scaled = exponent + question.log2_scale;
    if (scaled > grid.highest) return;
    const int quantum = !grid.gradual && scaled < grid.lowest ? 2 : grid.QuantumAt(scaled);
    errors += static_cast<double>(sum(quantum)) * PowerOfTwo(SquareUnit(exponent));
  };
  for (const Binade& binade : state_->table->binades) {
    const BinadeColumns columns(binade);
    add(binade.exponent,
        [&](int quantum) { return quantum > 1 ? columns.squares() : columns.Errors(quantum); });
  }
  ValueGroups& groups = state_->groups;
  for (size_t g = 0; g < groups.size(); ++g) {
    add(groups[g].exponent, [&](int quantum) { return groups.Errors(g, quantum); });
  }
  return errors;
}

std::optional<TensorStats> Ask(const TensorTable& table, const Conversion& conversion,
                               float scale) {
  static thread_local TableReader reader;
  reader.Open(table);
  return reader.Ask({conversion, scale});
}

int LikeExponent(const Conversion& conversion, int log2_scale, ExponentRange range) {
  const Grid grid(conversion);
  if (!IsNormal(grid, log2_scale, range)) return log2_scale;
  return std::clamp(0, LeastNormal(grid) - range.lowest, MostNormal(grid) - range.highest);
}

std::optional<uint64_t> CountFrom(const TensorTable& table, uint32_t magnitude) {
  if (magnitude == 0) return table.elements;
  uint64_t count = table.nan + (magnitude > codec::kInfinityBits ? 0 : table.inf);
  if (magnitude >= codec::kInfinityBits) return count;
  const auto first = std::ranges::lower_bound(table.values, magnitude, {}, MagnitudeOf);
  count += static_cast<uint64_t>(table.values.end() - first);
  const float least = std::bit_cast<float>(magnitude);
  for (const Binade& binade : table.binades) {
    const float begin = std::ldexp(1.0f, binade.exponent);
    if (begin >= least) {
      count += binade.count;
    } else if (2 * double{begin} > double{least}) {
      return std::nullopt;
    }
  }
  return count;
}

}  // namespace dlsim
