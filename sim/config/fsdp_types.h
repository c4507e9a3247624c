// SPDX-License-Identifier: Apache-2.0
// PyTorch's FSDP: the types of its MixedPrecision, whatever stack names them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/config/config_tree.h"
#include "sim/config/update_formats.h"

namespace dlsim::sim {

// Parameters are gathered in `param`, their gradients summed over ranks in `reduce`; the optimizer
// updates shards in `shards`, which are a copy unless they have the same type. What is not known is
// absent.
UpdateFormats FsdpFormats(std::optional<std::string> param, std::optional<std::string> reduce,
                          std::optional<std::string> shards);

// Returns a note for each type of 16 bits that some table names for sums over ranks (reduce_dtype)
// or for buffers (buffer_dtype).
std::vector<std::string> LintFsdp(const ConfigNode& root);

}  // namespace dlsim::sim
