// SPDX-License-Identifier: Apache-2.0
// CUDA's vector types and their alignment.
#pragma once

#include <cstddef>

namespace dlsim::emulation {

constexpr size_t VectorAlignment(size_t bytes, size_t element) {
  return bytes >= 16 ? 16 : (bytes & (bytes - 1)) == 0 ? bytes : element;
}

}  // namespace dlsim::emulation

#define DLSIM_EMULATED_VECTORS(Type, name)                                         \
  struct name##1 {                                                                 \
    Type x;                                                                        \
  };                                                                               \
  struct alignas(dlsim::emulation::VectorAlignment(2 * sizeof(Type), 0)) name##2 { \
    Type x, y;                                                                     \
  };                                                                               \
  struct name##3 {                                                                 \
    Type x, y, z;                                                                  \
  };                                                                               \
  struct alignas(dlsim::emulation::VectorAlignment(4 * sizeof(Type), 0)) name##4 { \
    Type x, y, z, w;                                                               \
  };                                                                               \
  inline name##1 make_##name##1(Type x) { return {x}; }                            \
  inline name##2 make_##name##2(Type x, Type y) { return {x, y}; }                 \
  inline name##3 make_##name##3(Type x, Type y, Type z) { return {x, y, z}; }      \
  inline name##4 make_##name##4(Type x, Type y, Type z, Type w) { return {x, y, z, w}; }

DLSIM_EMULATED_VECTORS(signed char, char)
DLSIM_EMULATED_VECTORS(unsigned char, uchar)
DLSIM_EMULATED_VECTORS(short, short)
DLSIM_EMULATED_VECTORS(unsigned short, ushort)
DLSIM_EMULATED_VECTORS(int, int)
DLSIM_EMULATED_VECTORS(unsigned, uint)
DLSIM_EMULATED_VECTORS(long long, longlong)
DLSIM_EMULATED_VECTORS(unsigned long long, ulonglong)
DLSIM_EMULATED_VECTORS(float, float)
DLSIM_EMULATED_VECTORS(double, double)
#undef DLSIM_EMULATED_VECTORS

struct dim3 {
  constexpr dim3(unsigned in_x = 1, unsigned in_y = 1, unsigned in_z = 1)
      : x(in_x), y(in_y), z(in_z) {}
  unsigned x, y, z;
};
