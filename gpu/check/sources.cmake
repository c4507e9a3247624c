# SPDX-License-Identifier: Apache-2.0
# The sources of dlsim_gpu_check, apart from those of dlsim::gpu: the tests compile them, too.
set(DLSIM_GPU_CHECK_SOURCES
    bench_kernels.cu
    benchmark.cc
    code_compare.cu
    convert_cases.cc
    cpu_sweep.cc
    data_sets.cc
    device_arrays.cc
    encode_sweep.cc
    error_checks.cc
    formats.cc
    host_tensor.cc
    large_check.cc
    multi_check.cc
    options.cc
    report.cc
    tensor_checks.cc
    timing.cc
    trace_tensors.cc)
list(TRANSFORM DLSIM_GPU_CHECK_SOURCES PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
