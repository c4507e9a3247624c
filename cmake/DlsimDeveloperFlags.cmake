# SPDX-License-Identifier: Apache-2.0
# One interface target carries the warnings, sanitizers and floating-point rules of dlsim's own code.
add_library(dlsim_developer_flags INTERFACE)

# Adds options for C++ and, through nvcc, for the C++ compiler behind it.
function(dlsim_host_options)
  foreach(option IN LISTS ARGN)
    target_compile_options(
      dlsim_developer_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${option}>"
                                      "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler ${option}>")
  endforeach()
endfunction()

# Bit-exact results: no contraction into fused multiply-add, no fast-math; on a device, too.
dlsim_host_options(-ffp-contract=off -Wall -Wextra -Wshadow -Wconversion)
target_compile_options(dlsim_developer_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false>)
# nvcc writes pointers to members with parentheses of its own into what the C++ compiler sees, and
# hands it the "unroll" of device code, too.
target_compile_options(
  dlsim_developer_flags
  INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler -Wno-parentheses,-Wno-unknown-pragmas>")
# GCC 12 reports a false overlap in std::string's operator+ (GCC bug 105651) and guesses wrongly where
# strings end, the more so with precompiled headers; GCC 13 and 14 believe that what a function returns
# by reference refers to its temporary arguments (GCC 12 ignores that option). Vectors are passed between inlined
# functions only, so that the ABI note does not matter. The sanitizers see what these warnings would.
target_compile_options(
  dlsim_developer_flags
  INTERFACE
    "$<$<CXX_COMPILER_ID:GNU>:-Wno-restrict;-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread;-Wno-dangling-reference;-Wno-psabi>"
)
if(NOT DLSIM_ENABLE_OPENMP)
  dlsim_host_options(-Wno-unknown-pragmas)
endif()
# Of the time that a file with nlohmann_json takes, GCC spends 6 % on freeing memory (-ftime-report).
# With a quarter more memory it seldom needs to.
target_compile_options(
  dlsim_developer_flags
  INTERFACE
    "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=400000;--param=ggc-min-expand=300>")
if(DLSIM_WARNINGS_AS_ERRORS)
  dlsim_host_options(-Werror)
  target_compile_options(dlsim_developer_flags
                         INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings>")
endif()
if(DLSIM_SANITIZE)
  dlsim_host_options(-fsanitize=${DLSIM_SANITIZE} -fno-sanitize-recover=all
                     -fno-omit-frame-pointer)
  target_link_options(dlsim_developer_flags INTERFACE -fsanitize=${DLSIM_SANITIZE})
endif()
# Coverage feedback for libFuzzer in the library as well as in the targets.
if(DLSIM_BUILD_FUZZERS)
  target_compile_options(dlsim_developer_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# Which instruction sets Highway compiles kernels for, in each file that has some.
add_library(dlsim_simd_targets INTERFACE)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  # SVE's vectors have no size at compile time, so that no struct can hold one, and those of the
  # kernels do, as PhiloxHalves. NEON runs instead.
  set(disabled_targets "HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128")
else()
  # The AVX-512 of Ice Lake and Zen 4 runs kernels no faster than that of Skylake. Processors without
  # AVX2 are from before 2013, or the cheapest of their year: they run the scalar kernels. Bit 14 is
  # HWY_SSE2, which Highway 1.0.3 does not have.
  set(disabled_targets "(1LL << 14)|HWY_SSSE3|HWY_SSE4|HWY_AVX3_DL")
  if(DLSIM_FEW_SIMD_TARGETS)
    # Sanitizers see in one kind of vectors what they would see in two, which take minutes each.
    string(APPEND disabled_targets "|HWY_AVX3")
  endif()
endif()
target_compile_definitions(dlsim_simd_targets INTERFACE "HWY_DISABLED_TARGETS=(${disabled_targets})")
