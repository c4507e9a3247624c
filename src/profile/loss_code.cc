// SPDX-License-Identifier: Apache-2.0
#include "src/profile/loss_code.h"

#include <bit>
#include <limits>
#include <type_traits>

namespace dlsim {
namespace {

// Calls visit(member) for all that a file holds of one axis, in its order.
template <class Stats, class Visit>
void ForEachMember(Stats& stats, const Visit& visit) {
  ForEachCounter([&](auto row) {
    if constexpr (row.kIsMember) visit(stats.stats.*row.kRow.of);
  });
  visit(stats.channels);
  visit(stats.mean_channel_harm);
  visit(stats.worst_channel_harm);
  visit(stats.min_scale);
  visit(stats.max_scale);
}

template <class T>
using Bits = std::conditional_t<sizeof(T) == sizeof(uint32_t), uint32_t, uint64_t>;

// Counts as varints, others as their bits.
template <class T>
void Put(const T& value, std::string& out) {
  if constexpr (std::is_integral_v<T>) {
    PutVarint(value, out);
  } else {
    PutWord(std::bit_cast<Bits<T>>(value), sizeof(T), out);
  }
}

template <class T>
void Take(ByteReader& in, T& value) {
  if constexpr (std::is_integral_v<T>) {
    value = in.Varint();
  } else {
    value = std::bit_cast<T>(static_cast<Bits<T>>(in.Word(sizeof(T))));
  }
}

size_t AxesOf(const ScaledLoss& loss) {
  size_t axes = 0;
  for (const ScaledStats& stats : loss.by_axis) axes += stats.stats.elements > 0 ? 1 : 0;
  return axes;
}

}  // namespace

void PutLosses(const std::vector<std::vector<ScaledLoss>>& losses, std::string& out) {
  for (const std::vector<ScaledLoss>& of_format : losses) {
    for (const ScaledLoss& loss : of_format) {
      const size_t axes = AxesOf(loss);
      PutVarint(axes, out);
      for (size_t i = 0; i < axes; ++i) {
        ForEachMember(loss.by_axis[i], [&](const auto& value) { Put(value, out); });
      }
    }
  }
}

std::vector<std::vector<ScaledLoss>> TakeLosses(size_t formats, size_t tensors, ByteReader& in) {
  in.Require(tensors == 0 || formats <= in.rest().size() / tensors,
             "damaged: losses end too early");
  std::vector<std::vector<ScaledLoss>> losses(formats, std::vector<ScaledLoss>(tensors));
  for (std::vector<ScaledLoss>& of_format : losses) {
    for (ScaledLoss& loss : of_format) {
      const uint64_t axes = in.Varint();
      in.Require(axes <= loss.by_axis.size(), "damaged: a tensor of more than two axes");
      for (size_t i = 0; i < axes; ++i) {
        ForEachMember(loss.by_axis[i], [&](auto& value) { Take(in, value); });
        in.Require(loss.by_axis[i].stats.elements > 0, "damaged: the loss of no elements");
      }
    }
  }
  return losses;
}

uint64_t MaxLossBytes(uint64_t formats, uint64_t tensors) {
  constexpr uint64_t kMostVarint = 10;
  uint64_t axis = 0;
  const ScaledStats stats;
  ForEachMember(stats, [&](const auto& value) {
    axis += std::is_integral_v<std::decay_t<decltype(value)>> ? kMostVarint : sizeof(value);
  });
  const uint64_t most = 1 + 2 * axis;
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  if (formats == 0 || tensors == 0) return 0;
  return tensors > kMax / most / formats ? kMax : formats * tensors * most;
}

}  // namespace dlsim
