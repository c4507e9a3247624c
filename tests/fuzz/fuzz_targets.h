// SPDX-License-Identifier: Apache-2.0
// The functions that both libFuzzer and the smoke test drive, one for each reader.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dlsim {

// Each takes a whole file and returns 0; it traps if the reader fails in another way than it
// promises, or breaks a promise about what it accepts.
int FuzzSafetensors(const uint8_t* bytes, size_t size);
int FuzzNpy(const uint8_t* bytes, size_t size);
int FuzzNpz(const uint8_t* bytes, size_t size);
int FuzzDump(const uint8_t* bytes, size_t size);
int FuzzShardIndex(const uint8_t* bytes, size_t size);  // with two shards
int FuzzTraceJson(const uint8_t* bytes, size_t size);   // with three steps

// The arrays of a step of a profile, and the settings of a profile.
int FuzzProfile(const uint8_t* bytes, size_t size);
int FuzzProfileSettings(const uint8_t* bytes, size_t size);

int FuzzExpectation(const uint8_t* bytes, size_t size);

// The name of a policy (any, where there is none of it), its settings, an empty line and its state,
// one KEY=VALUE a line.
int FuzzState(const uint8_t* bytes, size_t size);

}  // namespace dlsim
