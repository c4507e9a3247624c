// SPDX-License-Identifier: Apache-2.0
// The files that a command line names: nothing that is read is written.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace dlsim::sim {

// Refuses, before any work, an output of the command that was chosen if it has no name, is another
// output, or is a file that an argument names or that belongs to a trace; through links as well.
// Throws UsageError. Options called --json, --csv, --output or --out, and the argument OUT, are
// outputs in every command; arguments, options of a FILE, and values @FILE are inputs.
void CheckFileArguments(const CLI::App& app);

// The same of one output, against inputs that are named in another way, or found: `named_by` is the
// option or argument that leads to them.
void CheckOutputAgainst(const std::string& option, const std::string& output,
                        const std::string& named_by, const std::vector<std::string>& paths);

}  // namespace dlsim::sim
