// SPDX-License-Identifier: Apache-2.0
// CUDA's stream handle by its own name, so that public headers need no CUDA header.
#pragma once

struct CUstream_st;

namespace dlsim::gpu {

using Stream = CUstream_st*;  // cudaStream_t; null is the default stream

}  // namespace dlsim::gpu
