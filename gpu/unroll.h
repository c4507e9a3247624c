// SPDX-License-Identifier: Apache-2.0
// Asks for the next loop to be unrolled, so that its arrays lie in registers of a device.
#pragma once

#ifdef __CUDACC__
#define DLSIM_UNROLL _Pragma("unroll")
#else
#define DLSIM_UNROLL
#endif
