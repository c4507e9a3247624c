# SPDX-License-Identifier: Apache-2.0
# What makes builds quicker.

# Compiles these files of the target, by default all, as a few: the headers of CLI11, nlohmann_json
# and fmt cost most of the time. Their names without linkage must differ.
function(dlsim_unite target)
  if(NOT DLSIM_UNITY_BUILD)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 9)
  if(ARGN)
    get_target_property(sources ${target} SOURCES)
    list(REMOVE_ITEM sources ${ARGN})
    set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# Precompiles these headers for the target where that is wanted, in builds that are only tested; its files include what they use
# all the same, since builds without it must work, too.
function(dlsim_precompile target)
  if(DLSIM_PRECOMPILE_HEADERS STREQUAL all)
    target_precompile_headers(${target} PRIVATE ${ARGN})
    # GCC 12 guesses wrongly where strings of precompiled headers end.
    target_compile_options(
      ${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>)
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
