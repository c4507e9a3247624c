// SPDX-License-Identifier: Apache-2.0
// How the command ends when it does not return from main: temporary outputs go, and one line says
// why.
#pragma once

namespace dlsim::sim {

// Signals that end a process remove temporary outputs and then act as by default, unless they were
// ignored. An output beyond the limit on the size of files is reported as bad input (exit code 3).
void InstallSignalHandlers();

// An exception that nobody catches, and a library that ends the process, as OpenMP does when it can
// start no thread, are internal errors (exit code 70).
void InstallExitHandlers();

// To be called when main is about to return: what comes then is no error.
void AllowExit();

}  // namespace dlsim::sim
