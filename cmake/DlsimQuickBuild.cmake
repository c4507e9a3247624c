# SPDX-License-Identifier: Apache-2.0
# What makes builds quicker.

# Compiles the target's files of each folder as one: templates of nlohmann_json, fmt, CLI11 and
# GoogleTest cost most of the time. Names without linkage must differ within a folder; EXCEPT are files
# and folders of which each stays on its own.
function(dlsim_unite target)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "" "EXCEPT")
  if(NOT DLSIM_UNITY_BUILD)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(GET source PARENT_PATH folder)
    if(NOT source IN_LIST ARG_EXCEPT AND NOT folder IN_LIST ARG_EXCEPT)
      string(MAKE_C_IDENTIFIER "all_${folder}" group)
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
    endif()
  endforeach()
endfunction()

# Precompiles these headers for the target where that is wanted, in builds that are only tested; its
# files include what they use all the same, since builds without it must work, too.
function(dlsim_precompile target)
  if(DLSIM_PRECOMPILE_HEADERS STREQUAL all)
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()

# Optimizes the target in a build with sanitizers whose other parts are not optimized: tests spend
# their time in kernels.
function(dlsim_optimize_sanitized target)
  if(DLSIM_SANITIZE)
    target_compile_options(${target} PRIVATE -O1)
  endif()
endfunction()

set(DLSIM_STANDARD_HEADERS
    <algorithm>
    <charconv>
    <cmath>
    <fstream>
    <functional>
    <map>
    <memory>
    <optional>
    <sstream>
    <string>
    <variant>
    <vector>)
