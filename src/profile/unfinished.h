// SPDX-License-Identifier: Apache-2.0
// Tells what an interrupted run left as PATH.partial from what somebody else keeps there.
#pragma once

#include <cstdint>
#include <string>

#include "src/trace/byte_source.h"

namespace dlsim {

// Throws InputError unless the file is empty or begins as a profile does, and has no other name:
// `links` is the number of its hard links. `name` is the file's own, for messages.
void RequireOwn(const std::string& name, const ByteSource& file, uint64_t links);

// Throws InputError if the file is a complete profile.
void RequireUnfinished(const std::string& name, const ByteSource& file);

bool IsCompleteProfile(const ByteSource& file);

}  // namespace dlsim
