// SPDX-License-Identifier: Apache-2.0
// The act_dumps*.npz files of the Cerebras Model Zoo's DumpContext: several steps per file, stacked
// along the first axis of every array.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/trace.h"
#include "trace/npz.h"

namespace dlsim {

// Returns the position of a dump among its siblings: 0 for act_dumps.npz, 3 for act_dumps_3.npz;
// nothing for another name.
std::optional<int64_t> DumpNumber(std::string_view file_name);

// Returns the role of an array by its key, or nothing for a forward activation.
std::optional<Role> DumpRole(std::string_view key);

struct DumpSummary {
  uint64_t steps = 0;
  uint64_t forward_arrays = 0;
};

// Reads the directory and the header of the first gradient. Throws InputError.
DumpSummary SummarizeDump(const std::shared_ptr<NpzArchive>& archive);

// Returns the gradients of the `slice`-th step in the archive. Throws InputError.
std::vector<TraceTensor> ReadDumpSlice(const std::shared_ptr<NpzArchive>& archive, uint64_t slice,
                                       const TraceOptions& options);

}  // namespace dlsim
