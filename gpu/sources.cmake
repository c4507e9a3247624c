# SPDX-License-Identifier: Apache-2.0
# The sources of dlsim::gpu. CUDA compiles them, and the tests compile them for an emulated device.
set(DLSIM_GPU_SOURCES
    check_cuda.cc
    compact_counts.cu
    convert.cc
    convert_host_array.cc
    count_pieces.cu
    count_window.cu
    count_work.cc
    counter_store.cc
    cuda_device.cc
    decode.cu
    devices.cu
    encode_any.cu
    encode_bf16.cu
    encode_cb16.cu
    encode_fp16.cu
    histogram.cu
    measure_blocks.cu
    measure_merge.cu
    measure_pieces.cu
    measure_work.cc
    measurer.cc
    pointers.cc
    slot_ring.cc
    step_batch.cc
    tensor_list.cc
    wave_counter.cu
    window_plan.cc)
list(TRANSFORM DLSIM_GPU_SOURCES PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
