// SPDX-License-Identifier: Apache-2.0
// The dlsim command as a function, for its program and for Python.
#pragma once

namespace dlsim::sim {

// Runs the command of a command line, whose first word is the program's. What it writes and says
// goes to the current caller. Returns the exit code. Throws Canceled if the caller ends the work.
int RunCommand(int argc, char** argv);

}  // namespace dlsim::sim
