// SPDX-License-Identifier: Apache-2.0
// The sizes of the machine's caches.
#pragma once

#include <cstddef>

namespace dlsim {

// Returns the bytes of the last-level cache; 32 MiB where the system does not tell. Read once.
size_t LastLevelCacheBytes();

// Returns the size of a cache of the first processor as Linux lists it, in bytes; 0 if unknown.
// Level 0 stands for the last level.
size_t CacheBytes(int level);

}  // namespace dlsim
