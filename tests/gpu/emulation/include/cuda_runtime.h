// SPDX-License-Identifier: Apache-2.0
// Stands in for the CUDA Toolkit's header of this name: with it a C++ compiler makes of the files
// in gpu/ a library that runs kernels on the CPU. Names and meanings are those of CUDA.
#pragma once

#include "emulated/atomics.h"
#include "emulated/device_code.h"
#include "emulated/launch.h"
#include "emulated/runtime.h"
#include "emulated/types.h"
#include "emulated/vectors.h"
#include "emulated/warp.h"
