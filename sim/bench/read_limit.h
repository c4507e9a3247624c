// SPDX-License-Identifier: Apache-2.0
// The limit of whatever goes through files once: to read and add them up, and nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dlsim::sim {

// Where the bytes are before they are read.
enum class FileCache { kCached, kCold };

struct ReadTimes {
  double wall_seconds = 0, cpu_seconds = 0;  // the latter of all threads
  uint64_t sum = 0;                          // of all words
};

// Reads the files, 256 KiB at a time, into a buffer of each of `threads` threads, which adds it up.
// Cold files are asked for ahead of time, so that the device is never idle. Throws InputError.
ReadTimes ReadAndSum(const std::vector<std::string>& files, int threads, FileCache cache);

// Makes the system forget the content of the files, as far as it can: it keeps what is in memory
// alone, as in a file system of that kind.
void DropFromCache(const std::vector<std::string>& files);

}  // namespace dlsim::sim
