// SPDX-License-Identifier: Apache-2.0
// Hydra's overrides, KEY.KEY=VALUE, of a command line: the tables that they would change.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "sim/config/config_tree.h"

namespace dlsim::sim {

// "+actor.optim.clip_grad=0.5" as "actor.optim.clip_grad" and "0.5".
struct HydraOverride {
  std::string path, value;
};

// Returns nothing for a word that is no override of a value within a table, nor of verl's engine.
std::optional<HydraOverride> ParseOverride(std::string_view word);

// True if what dlsim reads of verl's configuration depends on this value.
bool DecidesVerl(std::string_view path);

// True for a program of verl's that trains: a module, as `python -m` takes it, or its path.
bool IsVerlProgram(std::string_view word);

// Puts a value where its path leads in `root`, in place of what was there.
void SetPath(ConfigNode& root, std::string_view path, ConfigNode value);

}  // namespace dlsim::sim
