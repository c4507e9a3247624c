// SPDX-License-Identifier: Apache-2.0
// Lets one definition compile for the host and for CUDA devices, without special compiler flags.
#pragma once

#ifdef __CUDACC__
#define DLSIM_HOST_DEVICE __host__ __device__
#else
#define DLSIM_HOST_DEVICE
#endif

namespace dlsim {

// std::bit_cast is no device function; the builtin behind it is both.
template <class To, class From>
DLSIM_HOST_DEVICE constexpr To BitCast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

}  // namespace dlsim
