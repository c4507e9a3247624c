# SPDX-License-Identifier: Apache-2.0
# The sources of dlsim::gpu. CUDA compiles them, and the tests compile them for an emulated device.
set(DLSIM_GPU_SOURCES
    base/check_cuda.cc
    base/pointers.cc
    base/tensor_list.cc
    count/compact_counts.cu
    count/count_pieces.cu
    count/count_window.cu
    count/wave_counter.cu
    count/window_plan.cc
    device/convert_host_array.cc
    device/count_work.cc
    device/counter_store.cc
    device/cuda_device.cc
    device/devices.cu
    device/measure_work.cc
    device/slot_ring.cc
    device/step_batch.cc
    encode/convert.cc
    encode/decode.cu
    encode/encode_any.cu
    encode/encode_bf16.cu
    encode/encode_cb16.cu
    encode/encode_fp16.cu
    measure/measure_blocks.cu
    measure/measure_merge.cu
    measure/measure_pieces.cu
    measure/measurer.cc
    scaled/convert_scaled.cu)

list(TRANSFORM DLSIM_GPU_SOURCES PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
