// SPDX-License-Identifier: Apache-2.0
// Lets one definition compile for the host and for CUDA devices.
#pragma once

#ifdef __CUDACC__
#define DLSIM_HOST_DEVICE __host__ __device__
#else
#define DLSIM_HOST_DEVICE
#endif
