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

# The project of docs/library.md prints what the page shows.
file(REAL_PATH ../../docs/library.md page BASE_DIRECTORY ${CMAKE_CURRENT_LIST_DIR})
file(READ ${page} text)
set(fences "```cmake" "```cpp" "```")
set(names CMakeLists.txt which_scale.cc shown.txt)
foreach(fence name IN ZIP_LISTS fences names)
  string(FIND "${text}" "${fence}\n" begin)
  string(SUBSTRING "${text}" ${begin} -1 text)
  string(FIND "${text}" "\n" begin)
  string(FIND "${text}" "\n```\n" end)
  math(EXPR length "${end} - ${begin}")
  math(EXPR begin "${begin} + 1")
  string(SUBSTRING "${text}" ${begin} ${length} block)
  file(WRITE ${WORK_DIR}/tutorial/${name} "${block}")
  math(EXPR end "${end} + 5")
  string(SUBSTRING "${text}" ${end} -1 text)
endforeach()
run(${CMAKE_COMMAND} -S ${WORK_DIR}/tutorial -B ${WORK_DIR}/tutorial-build -G ${GENERATOR}
    -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix -DCMAKE_CXX_COMPILER=${CXX} "-DCMAKE_CXX_FLAGS=${CXX_FLAGS}"
    "-DCUDAToolkit_ROOT=${CUDA_ROOT}")
run(${CMAKE_COMMAND} --build ${WORK_DIR}/tutorial-build)
execute_process(COMMAND ${WORK_DIR}/tutorial-build/which_scale ${TRACE} OUTPUT_VARIABLE printed
                        COMMAND_ERROR_IS_FATAL ANY)
file(READ ${WORK_DIR}/tutorial/shown.txt shown)
if(NOT printed STREQUAL shown)
  message(FATAL_ERROR "docs/library.md shows\n${shown}but this is printed\n${printed}")
endif()
