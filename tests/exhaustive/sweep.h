// SPDX-License-Identifier: Apache-2.0
// Compares encoders with the definition of a conversion over a sequence of inputs, and counts.
#pragma once

#include <cstdint>
#include <string>

#include "dlsim/convert.h"
#include "tests/exhaustive/input_sequence.h"
#include "tests/exhaustive/progress.h"

namespace dlsim {

// Whether DLSIM_EXHAUSTIVE=full asks for every input instead of the part that a routine run takes.
bool ProvesAll();

enum class Encoders {
  kReference,  // Encode of codec.h
  kAll,        // that, EncodeArray on every SIMD target, and the hardware's instruction where it is
};

// One sweep; element i of the sequence has index i in the random stream.
struct Sweep {
  std::string name;
  ArrayConversion how;
  InputSequence inputs;
  Encoders encoders = Encoders::kAll;
};

// Runs a sweep with codes of type Code; each encoder's first difference fails the current test.
template <class Code>
Tally RunSweep(const Sweep& sweep);
extern template Tally RunSweep<uint16_t>(const Sweep&);
extern template Tally RunSweep<uint32_t>(const Sweep&);

}  // namespace dlsim
