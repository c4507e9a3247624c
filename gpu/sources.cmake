# SPDX-License-Identifier: Apache-2.0
# The sources of dlsim::gpu. CUDA compiles them, and the tests compile them for an emulated device.

# Kernels and their calls, which need no package.
set(DLSIM_GPU_KERNEL_SOURCES
    check_cuda.cc
    compact_counts.cu
    convert.cc
    count_pieces.cu
    count_window.cu
    decode.cu
    encode_any.cu
    encode_bf16.cu
    encode_cb16.cu
    encode_fp16.cu
    histogram.cu
    measure_blocks.cu
    measure_merge.cu
    measure_pieces.cu
    measurer.cc
    pointers.cc
    tensor_list.cc
    wave_counter.cu
    window_plan.cc)

# A device that takes part in a replay: these need the readers of traces.
set(DLSIM_GPU_DEVICE_SOURCES
    convert_host_array.cc
    count_work.cc
    counter_store.cc
    cuda_device.cc
    devices.cu
    measure_work.cc
    slot_ring.cc
    step_batch.cc)

list(TRANSFORM DLSIM_GPU_KERNEL_SOURCES PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
list(TRANSFORM DLSIM_GPU_DEVICE_SOURCES PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
set(DLSIM_GPU_SOURCES ${DLSIM_GPU_KERNEL_SOURCES} ${DLSIM_GPU_DEVICE_SOURCES})
