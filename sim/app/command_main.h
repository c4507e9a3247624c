// SPDX-License-Identifier: Apache-2.0
// The dlsim command as a process: standard streams, signals, exit codes.
#pragma once

namespace dlsim::sim {

// What main does. It installs handlers, and ends the process where memory runs out: for a process
// of its own.
int CommandMain(int argc, char** argv);

}  // namespace dlsim::sim
