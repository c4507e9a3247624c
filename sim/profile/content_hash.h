// SPDX-License-Identifier: Apache-2.0
// What tells files of one name, size and time apart.
#pragma once

#include <cstdint>
#include <string>

namespace dlsim::sim {

// Returns a hash of a file's content, as docs/profile-format.md defines it; never 0. A file of at
// most 320 KiB is read whole; of a larger one its first 64 KiB, where headers are, and 64 samples
// of 4 KiB, evenly spread up to its end. Throws InputError.
uint64_t ContentHash(const std::string& path);

}  // namespace dlsim::sim
