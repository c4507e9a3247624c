# SPDX-License-Identifier: Apache-2.0
# Configures dlsim where no library is installed, as docs/install.md does without root: each is taken
# from its sources, for which empty ones in WORK_DIR stand, so that this needs no network.
file(REMOVE_RECURSE ${WORK_DIR})
set(libraries hwy nlohmann_json CLI11 fmt libzip libxxhash)
set(targets hwy nlohmann_json::nlohmann_json CLI11::CLI11 fmt::fmt
            zip xxhash)
set(libxxhash_folder /cmake_unofficial)
set(sources)
foreach(name target IN ZIP_LISTS libraries targets)
  string(REPLACE "::" "_" library ${target})
  set(text "project(${name})\nadd_library(${library} INTERFACE)\n")
  if(NOT library STREQUAL target)
    string(APPEND text "add_library(${target} ALIAS ${library})\n")
  endif()
  file(WRITE ${WORK_DIR}/${name}${${name}_folder}/CMakeLists.txt "${text}")
  string(TOUPPER ${name} upper)
  list(APPEND sources -DFETCHCONTENT_SOURCE_DIR_${upper}=${WORK_DIR}/${name})
  list(APPEND sources -DCMAKE_DISABLE_FIND_PACKAGE_${name}=ON)
endforeach()
execute_process(
  COMMAND
    ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/../.. -B ${WORK_DIR}/build -G ${GENERATOR}
    -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON -DDLSIM_BUILD_TESTS=OFF
    -DDLSIM_FETCH_DEPENDENCIES=ON ${sources}
  COMMAND_ERROR_IS_FATAL ANY)
file(READ ${WORK_DIR}/build/fetched.json fetched)
foreach(name IN LISTS libraries)
  string(JSON entry GET "${fetched}" ${name} source)
  if(NOT entry STREQUAL "${WORK_DIR}/${name}")
    message(FATAL_ERROR "${name} comes from '${entry}'")
  endif()
endforeach()
