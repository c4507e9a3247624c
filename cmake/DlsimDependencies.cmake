# SPDX-License-Identifier: Apache-2.0
# Finds the libraries that every build needs, fetches some of those that are missing where that is
# wanted, and names all others at once.
set(dlsim_missing "")
if(DLSIM_FETCH_DEPENDENCIES)
  enable_language(C)
  include(DlsimFetch)
endif()

# Says in a variable whether the library NAME is fetched even where it is installed.
macro(dlsim_prefer_fetched name variable)
  set(${variable} OFF)
  if(COMMAND dlsim_fetch_${name} AND (DLSIM_FETCH_DEPENDENCIES STREQUAL ALL OR ${name} IN_LIST DLSIM_FETCH_DEPENDENCIES))
    set(${variable} ON)
  endif()
endmacro()

# Fetches a library that was not found, or notes it as missing.
macro(dlsim_fetch_or_miss name version)
  if(NOT ${name}_FOUND)
    if(COMMAND dlsim_fetch_${name})
      message(STATUS "dlsim fetches ${name}")
      cmake_language(CALL dlsim_fetch_${name})
    else()
      list(APPEND dlsim_missing "${name} ${version}")
    endif()
  endif()
endmacro()

# Finds a package by its CMake files: name, oldest version, then what find_package takes.
macro(dlsim_find_package name version)
  dlsim_prefer_fetched(${name} dlsim_fetched_anyway)
  if(NOT dlsim_fetched_anyway)
    find_package(${name} ${version} QUIET ${ARGN})
  endif()
  dlsim_fetch_or_miss(${name} ${version})
endmacro()

# Finds a library by pkg-config as PkgConfig::<name>.
macro(dlsim_find_module name version)
  dlsim_prefer_fetched(${name} dlsim_fetched_anyway)
  if(PkgConfig_FOUND AND NOT dlsim_fetched_anyway)
    pkg_check_modules(${name} QUIET IMPORTED_TARGET ${name}>=${version})
  endif()
  dlsim_fetch_or_miss(${name} ${version})
endmacro()

dlsim_find_package(hwy 1.0.3 CONFIG)
dlsim_find_package(nlohmann_json 3.11 CONFIG)
dlsim_find_package(CLI11 2.1 CONFIG)
dlsim_find_package(fmt 9.1 CONFIG)
dlsim_find_package(Boost 1.74)
find_package(PkgConfig QUIET)
if(NOT PkgConfig_FOUND AND NOT DLSIM_FETCH_DEPENDENCIES)
  list(APPEND dlsim_missing pkg-config)
endif()
if(DLSIM_FETCH_DEPENDENCIES)
  dlsim_find_package(ZLIB 1.2) # of a libzip that is fetched
endif()
# Debian's libzip-config.cmake demands command-line tools that libzip-dev does not install.
dlsim_find_module(libzip 1.7)
dlsim_find_module(libxxhash 0.8)

if(dlsim_missing)
  list(JOIN dlsim_missing ", " dlsim_missing)
  message(
    FATAL_ERROR
      "libraries that dlsim needs are missing, or older than these:\n"
      "  ${dlsim_missing}\n"
      "  on Debian, tools/install-packages python installs what pip and CMake need\n"
      "  -D DLSIM_FETCH_DEPENDENCIES=ON fetches most; Boost, zlib (zlib1g-dev) and OpenMP must be there\n"
      "  docs/building.md says what each is for")
endif()
