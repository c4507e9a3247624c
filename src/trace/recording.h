// SPDX-License-Identifier: Apache-2.0
// Turns one planned file into a Recording: opens it and validates it.
#pragma once

#include <string>

#include "dlsim/trace.h"
#include "src/trace/dumps.h"
#include "src/trace/layout.h"
#include "src/trace/read_only_file.h"
#include "src/trace/safetensors.h"

namespace dlsim {

// True if the user's glob selects the tensor.
bool IsSelected(const std::string& name, const TraceOptions& options);

// Returns a recording of the tensors and the metadata of an opened safetensors file.
Recording MakeRecording(const std::shared_ptr<const ReadOnlyFile>& file,
                        const SafetensorsHeader& header, const TraceOptions& options);

// What files that are loaded one after another have in common.
struct OpenFiles {
  DumpCache dumps;
  LatestHeader header;
};

// Throws InputError.
Recording LoadRecording(const PlannedFile& file, const RoleMap* roles, const TraceOptions& options,
                        OpenFiles& open);

}  // namespace dlsim
