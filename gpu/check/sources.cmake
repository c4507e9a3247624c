# SPDX-License-Identifier: Apache-2.0
# The sources of dlsim_gpu_check, apart from those of dlsim::gpu: the tests compile them, too.
set(DLSIM_GPU_CHECK_SOURCES
    bench_kernels.cu
    benchmark.cc
    code_compare.cu
    cpu_sweep.cc
    encode_sweep.cc
    formats.cc
    large_check.cc
    options.cc
    report.cc
    time_launches.cc
    timing.cc)
list(TRANSFORM DLSIM_GPU_CHECK_SOURCES PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
