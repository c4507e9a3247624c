// SPDX-License-Identifier: Apache-2.0
// Asks for the next loop to be unrolled, so that its arrays lie in registers of a device, or not to
// be, so that its code stays small.
#pragma once

#ifdef __CUDACC__
#define DLSIM_UNROLL _Pragma("unroll")
#define DLSIM_NO_UNROLL _Pragma("unroll 1")
#else
#define DLSIM_NO_UNROLL
#define DLSIM_UNROLL
#endif
