// SPDX-License-Identifier: Apache-2.0
// The functions that both libFuzzer and the smoke test drive; each takes a whole file.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dlsim {

// Each returns 0, and traps if an accepted file breaks a promise of its parser.
int FuzzSafetensors(const uint8_t* bytes, size_t size);
int FuzzNpy(const uint8_t* bytes, size_t size);
int FuzzNpz(const uint8_t* bytes, size_t size);

// Takes a profile whose checksums are made right first.
int FuzzProfile(const uint8_t* bytes, size_t size);

// Takes a training configuration behind one byte that chooses its language.
int FuzzConfig(const uint8_t* bytes, size_t size);

}  // namespace dlsim
