# SPDX-License-Identifier: Apache-2.0
# Finds the libraries that every build needs, and names all that are missing at once.
set(dlsim_missing "")

# Finds a package by its CMake files: name, oldest version, then what find_package takes.
macro(dlsim_find_package name version)
  find_package(${name} ${version} QUIET ${ARGN})
  if(NOT ${name}_FOUND)
    list(APPEND dlsim_missing "${name} ${version}")
  endif()
endmacro()

# Finds a library by pkg-config as PkgConfig::<name>.
macro(dlsim_find_module name version)
  if(PkgConfig_FOUND)
    pkg_check_modules(${name} QUIET IMPORTED_TARGET ${name}>=${version})
  endif()
  if(NOT ${name}_FOUND)
    list(APPEND dlsim_missing "${name} ${version}")
  endif()
endmacro()

dlsim_find_package(hwy 1.0.3 CONFIG)
dlsim_find_package(nlohmann_json 3.11 CONFIG)
dlsim_find_package(CLI11 2.1 CONFIG)
dlsim_find_package(fmt 9.1 CONFIG)
dlsim_find_package(Boost 1.74)
dlsim_find_package(tomlplusplus 3.3 CONFIG)
dlsim_find_package(yaml-cpp 0.7 CONFIG)
find_package(PkgConfig QUIET)
if(NOT PkgConfig_FOUND)
  list(APPEND dlsim_missing pkg-config)
endif()
# Debian's libzip-config.cmake demands command-line tools that libzip-dev does not install.
dlsim_find_module(libzip 1.7)
dlsim_find_module(libzstd 1.5)
dlsim_find_module(libxxhash 0.8)

if(dlsim_missing)
  list(JOIN dlsim_missing ", " dlsim_missing)
  message(
    FATAL_ERROR
      "libraries that dlsim needs are missing, or older than these:\n"
      "  ${dlsim_missing}\n"
      "  on Debian, tools/install-packages python installs what pip and CMake need\n"
      "  docs/building.md says what each is for")
endif()
