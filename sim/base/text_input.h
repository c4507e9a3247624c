// SPDX-License-Identifier: Apache-2.0
// Texts that users name: files, pipes and standard input.
#pragma once

#include <cstdint>
#include <string>

namespace dlsim::sim {

// Returns how messages name an input: its path, or "standard input" for "-".
std::string InputName(const std::string& path);

// Reads a file or pipe to its end, or standard input for "-". Throws InputError if it cannot be
// read or holds more than `max_bytes`.
std::string ReadTextInput(const std::string& path, uint64_t max_bytes);

}  // namespace dlsim::sim
