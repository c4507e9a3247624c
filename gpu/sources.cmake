# SPDX-License-Identifier: Apache-2.0
# The sources of dlsim::gpu. CUDA compiles them, and the tests compile them for an emulated device.
set(DLSIM_GPU_SOURCES check_cuda.cc)
list(TRANSFORM DLSIM_GPU_SOURCES PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
