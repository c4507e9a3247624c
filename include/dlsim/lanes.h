// SPDX-License-Identifier: Apache-2.0
// The dozen bit operations over which codec.h and philox.h are written, for one scalar lane. The
// SIMD kernels supply the same operations for Highway vectors.
#pragma once

#include <cstdint>

#include "dlsim/host_device.h"

namespace dlsim {

// Operations on 32-bit lanes; here a lane is one uint32_t and a mask one bool.
struct ScalarLanes {
  using V = uint32_t;
  using M = bool;

  DLSIM_HOST_DEVICE constexpr V Set(uint32_t value) const { return value; }
  DLSIM_HOST_DEVICE constexpr V And(V a, V b) const { return a & b; }
  DLSIM_HOST_DEVICE constexpr V Or(V a, V b) const { return a | b; }
  DLSIM_HOST_DEVICE constexpr V Xor(V a, V b) const { return a ^ b; }
  DLSIM_HOST_DEVICE constexpr V Not(V a) const { return ~a; }
  DLSIM_HOST_DEVICE constexpr V Add(V a, V b) const { return a + b; }
  DLSIM_HOST_DEVICE constexpr V Sub(V a, V b) const { return a - b; }

  // Shifts by one count for all lanes, or by a count per lane; counts are 0..31.
  DLSIM_HOST_DEVICE constexpr V ShlBy(V a, uint32_t count) const { return a << count; }
  DLSIM_HOST_DEVICE constexpr V ShrBy(V a, uint32_t count) const { return a >> count; }
  DLSIM_HOST_DEVICE constexpr V Shl(V a, V counts) const { return a << counts; }
  DLSIM_HOST_DEVICE constexpr V Shr(V a, V counts) const { return a >> counts; }

  // a < b, as signed and as unsigned integers.
  DLSIM_HOST_DEVICE constexpr M Lt(V a, V b) const {
    return static_cast<int32_t>(a) < static_cast<int32_t>(b);
  }
  DLSIM_HOST_DEVICE constexpr M LtUnsigned(V a, V b) const { return a < b; }
  DLSIM_HOST_DEVICE constexpr M Eq(V a, V b) const { return a == b; }
  DLSIM_HOST_DEVICE constexpr M MaskAnd(M a, M b) const { return a && b; }
  DLSIM_HOST_DEVICE constexpr M MaskAndNot(M not_a, M b) const { return !not_a && b; }
  DLSIM_HOST_DEVICE constexpr V Select(M mask, V yes, V no) const { return mask ? yes : no; }

  // Smaller and larger of two lanes as signed integers.
  DLSIM_HOST_DEVICE constexpr V Min(V a, V b) const { return Lt(a, b) ? a : b; }
  DLSIM_HOST_DEVICE constexpr V Max(V a, V b) const { return Lt(a, b) ? b : a; }

  // Bits of the float32 difference of two lanes read as float32.
  DLSIM_HOST_DEVICE constexpr V SubFloat(V a, V b) const {
    return BitCast<uint32_t>(BitCast<float>(a) - BitCast<float>(b));
  }

  // Low and high half of the 64-bit product with a constant.
  DLSIM_HOST_DEVICE constexpr void MulWide(V a, uint32_t factor, V& low, V& high) const {
    const uint64_t product = uint64_t{a} * factor;
    low = static_cast<uint32_t>(product);
    high = static_cast<uint32_t>(product >> 32);
  }
};

}  // namespace dlsim
