// SPDX-License-Identifier: Apache-2.0
// Arguments of a training program: from a command line, whose keys begin with dashes, or a file.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/config/config_tree.h"

namespace dlsim::sim {

// Returns the table with its keys as Python names: "--fp16-init-scale" becomes fp16_init_scale.
ConfigNode ArgumentTable(const ConfigNode& table);

// True if all the paths of one of the marks, which blanks separate, are in the file.
bool HasMark(const ConfigNode& root, std::span<const std::string_view> marks);

// True for a command line or a script: its keys begin with "--".
bool IsCommandLine(const ConfigNode& root);

// Values of a file that one stack makes for another.
ConfigNode ScalarNode(ConfigNode::Kind kind, std::string text);
ConfigNode TableNode(std::vector<ConfigEntry> entries);

}  // namespace dlsim::sim
