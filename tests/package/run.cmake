# SPDX-License-Identifier: Apache-2.0
# Installs dlsim from BUILD_DIR into WORK_DIR, checks the headers, then configures, builds and runs
# the project beside this file against it.
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGV}: ${result}\n${out}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/prefix)
file(REAL_PATH ../../include include BASE_DIRECTORY ${CMAKE_CURRENT_LIST_DIR})
set(patterns dlsim/*.* dlsim/sim/*)
if(CUDA)
  list(APPEND patterns dlsim/gpu/*)
endif()
list(TRANSFORM patterns PREPEND ${include}/ OUTPUT_VARIABLE public_patterns)
list(TRANSFORM patterns PREPEND ${WORK_DIR}/prefix/include/ OUTPUT_VARIABLE installed_patterns)
file(GLOB public_headers RELATIVE ${include} ${public_patterns})
file(GLOB installed_headers RELATIVE ${WORK_DIR}/prefix/include ${installed_patterns})
if(NOT public_headers STREQUAL installed_headers)
  message(FATAL_ERROR "expected ${public_headers}, installed ${installed_headers}")
endif()
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK_DIR}/build -G ${GENERATOR}
    -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix -DCMAKE_CXX_COMPILER=${CXX} "-DCMAKE_CXX_FLAGS=${CXX_FLAGS}"
    "-DCUDAToolkit_ROOT=${CUDA_ROOT}")
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build)
run(${WORK_DIR}/build/package_test)
run(${WORK_DIR}/build/replay_test ${TRACE})
run(${WORK_DIR}/prefix/bin/dlsim --version)
