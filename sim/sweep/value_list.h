// SPDX-License-Identifier: Apache-2.0
// The values of one parameter of a sweep, as users write them: "100,200,1000..5000/500,2^0..2^32".
#pragma once

#include <cstddef>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace dlsim::sim {

// "2^A..2^B" is every power of two, "A..B/STEP" an arithmetic and "A..B*FACTOR" a geometric row.
struct ValueRange {
  enum class Kind : uint8_t { kPowersOfTwo, kArithmetic, kGeometric };
  Kind kind = Kind::kPowersOfTwo;
  double first = 0, last = 0;  // exponents of powers of two
  bool integers = false;       // all that is given is an integer

  friend bool operator==(const ValueRange&, const ValueRange&) = default;
};

// What is between two commas.
struct ValueItem {
  std::vector<std::string> values;
  std::optional<ValueRange> range = {};
};

struct ValueList {
  std::vector<ValueItem> items;

  size_t count() const;
  const std::string& at(size_t i) const;
};

// Throws Error (exit code 2) that names `place`.
ValueList ParseValueList(std::string_view text, std::string_view place);

using SweepRandom = std::mt19937_64;

// Returns a number below `bound`; the same on every machine, unlike that of <random>.
size_t DrawBelow(size_t bound, SweepRandom& random);

// Draws a value of the list, all alike, but from within a range if it falls into one: one of the
// powers of two, any number of an arithmetic row's interval, or of a geometric row's with a uniform
// logarithm; integers if the row is of integers.
std::string DrawValue(const ValueList& list, SweepRandom& random);

}  // namespace dlsim::sim
