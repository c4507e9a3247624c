// SPDX-License-Identifier: Apache-2.0
// Bytes compressed with zstd: always the same bytes for the same input and version of libzstd.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/profile/bytes.h"

namespace dlsim {

// Appends the size of `bytes`, the size of their frame, and the frame.
void PutCompressed(std::string_view bytes, std::string& out);

// Takes what PutCompressed appended. Refuses more than `max_size` bytes before it allocates them.
std::string TakeCompressed(ByteReader& in, uint64_t max_size);

}  // namespace dlsim
