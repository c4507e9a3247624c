// SPDX-License-Identifier: Apache-2.0
// The program of the dlsim command.
#include "sim/app/commands.h"

int main(int argc, char** argv) { return dlsim::sim::CommandMain(argc, argv); }
