// SPDX-License-Identifier: Apache-2.0
#include "gpu/encode/encode_kernel.cuh"

namespace dlsim::gpu {

template void LaunchEncodeTo<kCb16>(const EncodeJob&, const Conversion&, Stream);

}  // namespace dlsim::gpu
