// SPDX-License-Identifier: Apache-2.0
// What the command does when a signal ends it.
#pragma once

namespace dlsim::sim {

// Signals that end a process remove temporary outputs and then act as by default, unless they were
// ignored. SIGBUS, which reading a mapped file raises once it has been cut, is reported as bad
// input (exit code 3); so is an output beyond the limit on the size of files.
void InstallSignalHandlers();

}  // namespace dlsim::sim
