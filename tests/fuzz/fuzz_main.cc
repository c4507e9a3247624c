// SPDX-License-Identifier: Apache-2.0
// The entry point of libFuzzer; DLSIM_FUZZ_TARGET names the function to drive.
#include "tests/fuzz/fuzz_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  return dlsim::DLSIM_FUZZ_TARGET(bytes, size);
}
