# SPDX-License-Identifier: Apache-2.0
# The command with an emulated device, and its tests.
add_executable(dlsim_emulated ${CMAKE_CURRENT_LIST_DIR}/emulated_machine.cc
                              ${PROJECT_SOURCE_DIR}/sim/app/main.cc)
target_compile_features(dlsim_emulated PRIVATE cxx_std_20)
target_link_libraries(dlsim_emulated PRIVATE dlsim_process dlsim_command_objects
                                             dlsim_gpu_emulated)
set(device_command_label fast)
if(DLSIM_SANITIZE)
  set(device_command_label slow) # it takes minutes then
endif()
dlsim_add_test(
  device_command_test
  LABEL ${device_command_label}
  SOURCES gpu/device_command_test.cc
  LIBRARIES dlsim_command_library)
target_compile_definitions(device_command_test PRIVATE DLSIM_COMMAND="$<TARGET_FILE:dlsim_emulated>")
add_dependencies(device_command_test dlsim_emulated)
if(DLSIM_BUILD_BENCHMARKS)
  add_executable(dlsim_bench_emulated ${CMAKE_CURRENT_LIST_DIR}/emulated_machine.cc
                                      ${PROJECT_SOURCE_DIR}/bench/gpu_kernels.cc)
  target_compile_features(dlsim_bench_emulated PRIVATE cxx_std_20)
  target_link_libraries(dlsim_bench_emulated PRIVATE dlsim_bench_objects dlsim_gpu_emulated)
  target_compile_definitions(
    device_command_test PRIVATE DLSIM_EMULATED_BENCH="$<TARGET_FILE:dlsim_bench_emulated>")
  add_dependencies(device_command_test dlsim_bench_emulated)
endif()
dlsim_add_test(open_device_test SOURCES gpu/open_device_test.cc
               ${PROJECT_SOURCE_DIR}/sim/app/device_option.cc
               ${PROJECT_SOURCE_DIR}/sim/app/help_format.cc
               ${PROJECT_SOURCE_DIR}/sim/app/option_rows.cc
               ${PROJECT_SOURCE_DIR}/sim/app/option_values.cc
               LIBRARIES dlsim_gpu_emulated dlsim_command_library CLI11::CLI11)
