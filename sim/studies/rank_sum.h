// SPDX-License-Identifier: Apache-2.0
// How the gradients of data-parallel ranks become one: the additions of an all-reduce, each rounded
// as its library rounds it. Rules and their sources: docs/accumulation.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/format.h"

namespace dlsim::sim {

enum class Algorithm : uint8_t {
  kRing,      // a chunk is added up from rank to rank, and rounded at every hop
  kTree,      // a rank adds what its children in a tree sent to its own, and rounds each sum
  kAllToAll,  // a rank has its chunk from all ranks, adds them in float32 and rounds once
};

constexpr auto EnumNames(Algorithm) {
  return std::to_array<EnumName<Algorithm>>({{Algorithm::kRing, "ring"},
                                             {Algorithm::kTree, "tree"},
                                             {Algorithm::kAllToAll, "all-to-all"}});
}

// Where the sum becomes a mean.
enum class Division : uint8_t { kBefore, kAfter, kSqrt };

constexpr auto EnumNames(Division) {
  return std::to_array<EnumName<Division>>(
      {{Division::kBefore, "before"}, {Division::kAfter, "after"}, {Division::kSqrt, "sqrt"}});
}

// Most mantissa bits of a format whose sums float32 holds well enough to be rounded again: with p
// bits of significand, 2 p + 2 must not be more than float32's 24 (Figueroa, 1995).
inline constexpr int kMaxWireMantissa = 10;

// Most ranks that are asked for.
inline constexpr uint64_t kMaxRanks = 512;

// One way to reduce.
struct Reduction {
  std::string name;            // "bf16 ring before"
  std::string format;          // its name; fp32 without `wire`
  std::optional<Format> wire;  // what is sent and, but for all-to-all, added in
  Algorithm algorithm = Algorithm::kRing;
  Division division = Division::kBefore;
  float scale = 1;           // loss scale of the gradients
  std::optional<int> level;  // instead of an algorithm: Cerebras' precision_opt_level

  // By what gradients are divided before they are added, and their sum after.
  float Before(size_t ranks) const;
  float After(size_t ranks) const { return static_cast<float>(ranks) / Before(ranks); }

  // How many times its rounding and that of float32 may follow one another on a value's way:
  // whatever the order, the result lies within a factor of (1 + u)^n of each term.
  double LargestGrowth(size_t ranks) const;
};

// The values of some elements as each of several ranks has them: a row per rank.
struct RankValues {
  size_t ranks = 0, elements = 0;
  std::vector<float> values;

  std::span<float> Row(size_t r) { return std::span(values).subspan(r * elements, elements); }
  std::span<const float> Row(size_t r) const {
    return std::span(values).subspan(r * elements, elements);
  }
};

// Returns what ranks send: the values scaled, rounded to the format, divided and rounded again.
RankValues Send(const RankValues& gradients, const Reduction& reduction);

// Adds and divides what was sent; the result still carries the scale. Position p of the ring, or of
// the tree, is that of rank order[p]. `places` are those of elements in their tensor, 0 to 1, which
// tell the chunk of a ring and the tree of two.
std::vector<float> Reduce(const RankValues& sent, std::span<const size_t> order,
                          std::span<const double> places, const Reduction& reduction);

// Returns orders that a library may choose: all of up to four ranks, else that of the ranks and
// seven shuffled ones, the same in every run.
std::vector<std::vector<size_t>> OrdersOf(size_t ranks);

}  // namespace dlsim::sim
