# SPDX-License-Identifier: Apache-2.0
# Writes which commit the sources are of: cmake -D SOURCE_DIR=DIR -D OUTPUT=FILE -P DlsimCommit.cmake
# defines DLSIM_COMMIT, empty where the sources are no checkout of their own, such as an sdist that was
# unpacked within another repository. The file is written only if that changes.
set(commit "")
if(EXISTS ${SOURCE_DIR}/.git)
  execute_process(
    COMMAND git -C ${SOURCE_DIR} rev-parse --short=7 HEAD
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  execute_process(
    COMMAND git -C ${SOURCE_DIR} --no-optional-locks status --porcelain --untracked-files=no
    OUTPUT_VARIABLE changes ERROR_QUIET)
  if(commit AND changes)
    string(APPEND commit ", modified")
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define DLSIM_COMMIT \"${commit}\"\n")
