// SPDX-License-Identifier: Apache-2.0
// The few metadata strings of a recording that dlsim understands; all others are free text.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "dlsim/trace.h"

namespace dlsim {

using Metadata = std::map<std::string, std::string>;

// Returns the non-negative number under `key`, or nothing if there is none. Throws InputError.
std::optional<int64_t> MetadataNumber(const std::string& place, const Metadata& metadata,
                                      const std::string& key);

// Sets grad_scale from the metadata and refuses what dlsim would misread. Throws InputError.
void ApplyMetadata(const std::string& place, Recording& recording);

// Files that belong together.
struct FileCounts {
  size_t micro_steps = 1;  // of the step
  size_t ranks = 1;        // of each micro-step
};

// Throws InputError unless the metadata agrees with what the file's name and neighbors say.
void CheckPosition(const Recording& recording, int64_t step, const FileCounts& counts);

}  // namespace dlsim
