// SPDX-License-Identifier: Apache-2.0
// Converts .npy files piece by piece, in constant memory.
#pragma once

#include <optional>
#include <string>

#include "dlsim/convert.h"
#include "dlsim/trace.h"

namespace dlsim {
class ComputeDevice;
}  // namespace dlsim

namespace dlsim::sim {

// Encodes the floats of `input` (f2, f4, f8, or V2 as `void2` says; rounded to float32 first) and
// writes the codes to `output`: uint16, or uint32 for formats of more than 16 bits. Shape and order
// are kept. Throws Error; `output` appears complete or not at all. `device` converts, or the CPU if
// it is null.
void EncodeNpyFile(const std::string& input, const std::string& output, const ArrayConversion& how,
                   std::optional<DType> void2, ComputeDevice* device = nullptr);

// Decodes the uint16 or uint32 codes of `input`, unscales them (a multiplication with the float32
// reciprocal of `scale`) and writes float32 to `output`.
void DecodeNpyFile(const std::string& input, const std::string& output, const NamedFormat& format,
                   float scale, ComputeDevice* device = nullptr);

}  // namespace dlsim::sim
