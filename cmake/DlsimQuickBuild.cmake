# SPDX-License-Identifier: Apache-2.0
# What makes builds quicker.

# Compiles files of the target together, as units of a folder: the headers of the standard library and
# of fmt cost most of their time. Files that include nlohmann_json, CLI11 or nanobind, which cost seconds
# each, are units of their own kind, across folders unless BY_FOLDER is given. A unit takes at most about 12
# seconds: it ends where its files have the bytes below. Names without linkage must differ within a
# unit; EXCEPT are files and folders of which each stays on its own.
set(DLSIM_UNIT_BYTES_plain 60000)
set(DLSIM_UNIT_BYTES_json 22000)
set(DLSIM_UNIT_BYTES_cli 60000)
set(DLSIM_UNIT_BYTES_nanobind 30000)

function(dlsim_unite target)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "BY_FOLDER" "" "EXCEPT")
  if(NOT DLSIM_UNITY_BUILD)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(GET source PARENT_PATH folder)
    if(source IN_LIST ARG_EXCEPT OR folder IN_LIST ARG_EXCEPT OR source MATCHES "^[$]")
      continue()
    endif()
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} OUTPUT_VARIABLE path)
    file(SIZE ${path} bytes)
    file(STRINGS ${path} costly REGEX "^#include (<nlohmann/json.hpp>|<CLI/CLI.hpp>|<nanobind/|\".*strict_json.h\")")
    set(kind plain)
    if(costly MATCHES "CLI")
      set(kind cli)
    elseif(costly MATCHES "nanobind")
      set(kind nanobind)
    elseif(costly)
      set(kind json)
    endif()
    set(group ${kind})
    if(kind STREQUAL plain OR ARG_BY_FOLDER)
      string(MAKE_C_IDENTIFIER "${folder}_${kind}" group)
    endif()
    math(EXPR total_${group} "${bytes} + 0${total_${group}}")
    math(EXPR part "${total_${group}} / ${DLSIM_UNIT_BYTES_${kind}}")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group}_${part})
  endforeach()
endfunction()

# Optimizes the target's files less than kernels in a release, which saves a third of the compile time:
# "much" for what runs for every tensor or step, "little" for what runs once.
function(dlsim_optimize target how)
  if(how STREQUAL "little")
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  else()
    # Of -O2 these take GCC the most time, and are of use in loops over values.
    target_compile_options(
      ${target}
      PRIVATE $<$<CONFIG:Release>:-O2>
              $<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU>>:-fno-tree-vectorize;-fno-gcse;-fno-tree-pre>)
  endif()
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
