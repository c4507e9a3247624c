// SPDX-License-Identifier: Apache-2.0
// The size of the machine's last cache.
#pragma once

#include <cstddef>

namespace dlsim {

// Returns the bytes of the last-level cache; 32 MiB where the system does not tell. Read once.
size_t LastLevelCacheBytes();

}  // namespace dlsim
