# SPDX-License-Identifier: Apache-2.0
# dlsim_gpu_check on the emulated device: is the check itself right?
include(${PROJECT_SOURCE_DIR}/gpu/check/sources.cmake)
set_source_files_properties(${DLSIM_GPU_CHECK_SOURCES} PROPERTIES LANGUAGE CXX)
add_library(dlsim_gpu_check_parts STATIC ${DLSIM_GPU_CHECK_SOURCES}
                                         ${PROJECT_SOURCE_DIR}/gpu/check/without_toolkit.cc)
target_link_libraries(
  dlsim_gpu_check_parts
  PUBLIC dlsim_gpu_emulated
  PRIVATE dlsim_developer_flags $<TARGET_NAME_IF_EXISTS:OpenMP::OpenMP_CXX>)
target_include_directories(dlsim_gpu_check_parts PRIVATE ${PROJECT_SOURCE_DIR})

add_executable(dlsim_gpu_check_emulated ${PROJECT_SOURCE_DIR}/gpu/check/main.cc)
target_link_libraries(dlsim_gpu_check_emulated PRIVATE dlsim_gpu_check_parts dlsim_developer_flags)
# Many tensors take long where each kernel looks through a table for each of them.
set(sizes --inputs 1024 --elements 5000 --rounds 1)
add_test(NAME GpuCheck.PassesOnTheEmulatedDevice
         COMMAND dlsim_gpu_check_emulated ${sizes} --only encode,large,bench)
add_test(NAME GpuCheck.CountsOnTheEmulatedDevice
         COMMAND dlsim_gpu_check_emulated ${sizes} --only multi)
set_tests_properties(GpuCheck.PassesOnTheEmulatedDevice PROPERTIES LABELS fast)
set_tests_properties(GpuCheck.CountsOnTheEmulatedDevice PROPERTIES LABELS slow)

dlsim_add_test(gpu_check_test LIBRARIES dlsim_gpu_check_parts)
