// SPDX-License-Identifier: Apache-2.0
#include "sim/studies/rank_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "dlsim/codec.h"
#include "dlsim/philox.h"

namespace dlsim::sim {
namespace {

// Terms of a partial sum in 16 bits on level 2.
constexpr size_t kLevelChunk = 128;
constexpr size_t kAllOrdersUpTo = 4, kOrders = 8;

// Rounds float32 values to a format, to nearest even; to float32 not at all.
class Rounder {
 public:
  explicit Rounder(const std::optional<Format>& format) : rounds_(format.has_value()) {
    if (rounds_) spec_ = MakeCodecSpec({*format});
  }

  void operator()(std::span<float> values) const {
    if (!rounds_) return;
    for (float& value : values) value = Round(std::bit_cast<uint32_t>(value));
  }

 private:
  float Round(uint32_t bits) const {
    const uint32_t magnitude = bits & ~codec::kSignBit;
    const uint32_t range = spec_.plain_max_bits - spec_.plain_min_bits;
    if (spec_.gradual && magnitude - spec_.plain_min_bits <= range) {
      const uint32_t plain = scalar::QuantizePlain<Rounding::kNearestEven>(
          ScalarLanes(), spec_, magnitude, magnitude != bits, 0);
      return std::bit_cast<float>((bits & codec::kSignBit) | plain);
    }
    const uint32_t code = EncodeWith<Rounding::kNearestEven>(spec_, bits, 0).code;
    return std::bit_cast<float>(Decode(spec_, code));
  }

  bool rounds_;
  CodecSpec spec_ = {};
};

void Add(std::span<const float> addend, std::span<float> sum) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += addend[i];
}

// The sum of chunk c begins at the rank after the c-th and ends there.
std::vector<float> Ring(const RankValues& sent, std::span<const size_t> order,
                        std::span<const double> places, const Rounder& round) {
  const size_t ranks = sent.ranks;
  std::vector<size_t> twice(order.begin(), order.end());  // once around from any rank
  twice.insert(twice.end(), order.begin(), order.end());
  std::vector<size_t> first(sent.elements);
  std::vector<float> sum(sent.elements);
  for (size_t hop = 0; hop < ranks; ++hop) {
    for (size_t i = 0; i < sum.size(); ++i) {
      if (hop == 0) {
        const size_t chunk = static_cast<size_t>(places[i] * static_cast<double>(ranks));
        first[i] = (chunk + 1) % ranks;
      }
      const float value = sent.values[twice[first[i] + hop] * sent.elements + i];
      sum[i] = hop == 0 ? value : sum[i] + value;
    }
    round(sum);
  }
  return sum;
}

// NCCL's binary tree over positions: odd ones are leaves, and one whose lowest bit is b has its
// children b / 2 before and, if it exists, after it. The root is 0.
struct Children {
  size_t count = 0;
  std::array<size_t, 2> at = {};
};

Children ChildrenOf(size_t position, size_t ranks) {
  const size_t bit = position == 0 ? std::bit_ceil(ranks) : position & (~position + 1);
  Children children;
  if (position != 0 && bit > 1) children.at[children.count++] = position - bit / 2;
  size_t after = bit / 2;
  while (after > 0 && position + after >= ranks) after /= 2;
  if (after > 0) children.at[children.count++] = position + after;
  return children;
}

class Tree {
 public:
  // `mirrored`: the second of NCCL's two trees, from the other end or, of an odd number of ranks,
  // one rank further.
  Tree(const RankValues& sent, std::span<const size_t> order, bool mirrored, size_t begin,
       size_t end, const Rounder& round)
      : sent_(sent), order_(order), mirrored_(mirrored), begin_(begin), end_(end), round_(round) {}

  std::vector<float> Sum(size_t position = 0) const {
    const std::span<const float> own =
        sent_.Row(order_[RankAt(position)]).subspan(begin_, end_ - begin_);
    std::vector<float> sum(own.begin(), own.end());
    const Children children = ChildrenOf(position, sent_.ranks);
    for (size_t c = 0; c < children.count; ++c) {
      Add(Sum(children.at[c]), sum);
      round_(sum);
    }
    return sum;
  }

 private:
  size_t RankAt(size_t position) const {
    if (!mirrored_) return position;
    return sent_.ranks % 2 == 0 ? sent_.ranks - 1 - position : (position + 1) % sent_.ranks;
  }

  const RankValues& sent_;
  std::span<const size_t> order_;
  bool mirrored_;
  size_t begin_, end_;
  const Rounder& round_;
};

// Each tree has one half of the elements.
std::vector<float> TwoTrees(const RankValues& sent, std::span<const size_t> order,
                            std::span<const double> places, const Rounder& round) {
  const auto middle = std::ranges::find_if(places, [](double place) { return place >= 0.5; });
  const size_t half = static_cast<size_t>(middle - places.begin());
  std::vector<float> sum = Tree(sent, order, false, 0, half, round).Sum();
  const std::vector<float> second = Tree(sent, order, true, half, sent.elements, round).Sum();
  sum.insert(sum.end(), second.begin(), second.end());
  return sum;
}

// Float32 sums of rounded partial sums of `chunk` terms; a chunk of one term is a float32 sum.
std::vector<float> Mixed(const RankValues& sent, std::span<const size_t> order, size_t chunk,
                         const Rounder& round) {
  std::vector<float> sum, partial;
  for (size_t position = 0; position < sent.ranks; ++position) {
    const std::span<const float> addend = sent.Row(order[position]);
    if (position % chunk == 0) {
      partial.assign(addend.begin(), addend.end());
    } else {
      Add(addend, partial);
      round(partial);
    }
    if (position + 1 != sent.ranks && (position + 1) % chunk != 0) continue;
    if (sum.empty()) {
      sum = partial;
    } else {
      Add(partial, sum);
    }
  }
  return sum;
}

std::vector<float> AddUp(const RankValues& sent, std::span<const size_t> order,
                         std::span<const double> places, const Reduction& reduction,
                         const Rounder& round) {
  if (reduction.level) return Mixed(sent, order, *reduction.level == 2 ? kLevelChunk : 1, round);
  if (reduction.algorithm == Algorithm::kRing) return Ring(sent, order, places, round);
  if (reduction.algorithm == Algorithm::kTree) return TwoTrees(sent, order, places, round);
  std::vector<float> sum = Mixed(sent, order, 1, round);
  round(sum);
  return sum;
}

}  // namespace

float Reduction::Before(size_t ranks) const {
  if (level || division == Division::kAfter) return 1;
  if (division == Division::kBefore) return static_cast<float>(ranks);
  size_t factor = 1;  // as FSDP: a power of two near the square root
  while (ranks % factor == 0 && ranks / factor > factor) factor *= 2;
  return static_cast<float>(factor);
}

double Reduction::LargestGrowth(size_t ranks) const {
  constexpr double kFloat = 0x1p-24;
  const double unit = wire ? std::ldexp(1.0, -wire->mantissa_bits - 1) : kFloat;
  const double count = static_cast<double>(ranks);
  double narrow = count + 2;  // of the gradient, by both divisions and by additions
  if (algorithm == Algorithm::kAllToAll) narrow = 4;
  if (level) narrow = *level == 2 ? std::min(count, static_cast<double>(kLevelChunk)) : 1;
  return std::pow(1 + unit, narrow) * std::pow(1 + kFloat, count + 2);
}

RankValues Send(const RankValues& gradients, const Reduction& reduction) {
  const Rounder round(reduction.wire);
  const float before = reduction.Before(gradients.ranks);
  RankValues sent = gradients;
  for (float& value : sent.values) value *= reduction.scale;
  round(sent.values);
  if (before == 1) return sent;
  for (float& value : sent.values) value /= before;
  round(sent.values);
  return sent;
}

std::vector<float> Reduce(const RankValues& sent, std::span<const size_t> order,
                          std::span<const double> places, const Reduction& reduction) {
  const Rounder round(reduction.wire);
  std::vector<float> result = AddUp(sent, order, places, reduction, round);
  const float after = reduction.After(sent.ranks);
  if (after == 1) return result;
  for (float& value : result) value /= after;
  if (!reduction.level) round(result);
  return result;
}

std::vector<std::vector<size_t>> OrdersOf(size_t ranks) {
  std::vector<size_t> order(ranks);
  std::iota(order.begin(), order.end(), size_t{0});
  std::vector<std::vector<size_t>> orders = {order};
  if (ranks <= kAllOrdersUpTo) {
    while (std::ranges::next_permutation(order).found) orders.push_back(order);
    return orders;
  }
  for (uint32_t stream = 1; stream < kOrders; ++stream) {
    for (size_t i = ranks - 1; i > 0; --i) {
      const uint64_t random = RandomBits({0, stream}, i);
      std::swap(order[i], order[static_cast<size_t>((random * (i + 1)) >> 32)]);
    }
    orders.push_back(order);
  }
  return orders;
}

}  // namespace dlsim::sim
