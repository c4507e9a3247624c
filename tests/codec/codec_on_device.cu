// SPDX-License-Identifier: Apache-2.0
// Compiles the semantics for a CUDA device: the same text, no special flags, no warnings.
#include <cstdint>

#include "dlsim/codec.h"

__global__ void RoundTrip(dlsim::Conversion conversion, dlsim::RandomStream random,
                          const uint32_t* bits, uint32_t* decoded, uint32_t* classes,
                          uint64_t count) {
  const uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const dlsim::CodecSpec spec = dlsim::MakeCodecSpec(conversion);
  const uint32_t code =
      dlsim::Encode(spec, conversion.rounding, bits[i], dlsim::RandomBits(random, i)).code;
  decoded[i] = dlsim::Decode(spec, code);
  classes[i] = static_cast<uint32_t>(dlsim::Classify(spec, code));
}
