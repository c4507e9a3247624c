# SPDX-License-Identifier: Apache-2.0
# One interface target carries the warnings, sanitizers and floating-point rules of dlsim's own code.
add_library(dlsim_developer_flags INTERFACE)

# Bit-exact results: no contraction into fused multiply-add, no fast-math.
target_compile_options(dlsim_developer_flags INTERFACE -ffp-contract=off -Wall -Wextra -Wshadow
                                                       -Wconversion)
# GCC 12 reports a false overlap in std::string's operator+ (GCC bug 105651); vectors are passed
# between inlined functions only, so that the ABI note does not matter.
target_compile_options(
  dlsim_developer_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> $<$<CXX_COMPILER_ID:GNU>:-Wno-psabi>)
if(NOT DLSIM_ENABLE_OPENMP)
  target_compile_options(dlsim_developer_flags INTERFACE -Wno-unknown-pragmas)
endif()
if(DLSIM_WARNINGS_AS_ERRORS)
  target_compile_options(dlsim_developer_flags INTERFACE -Werror)
endif()
if(DLSIM_SANITIZE)
  target_compile_options(
    dlsim_developer_flags INTERFACE -fsanitize=${DLSIM_SANITIZE} -fno-sanitize-recover=all
                                    -fno-omit-frame-pointer)
  target_link_options(dlsim_developer_flags INTERFACE -fsanitize=${DLSIM_SANITIZE})
endif()
# Coverage feedback for libFuzzer in the library as well as in the targets.
if(DLSIM_BUILD_FUZZERS)
  target_compile_options(dlsim_developer_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
