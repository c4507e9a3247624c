# SPDX-License-Identifier: Apache-2.0
# Gets libraries that are missing: releases of their projects, pinned by the hash of the archive.
# docs/building.md says how the hashes were checked. fetched.json in the build's folder lists what
# a build took, for the bill of materials of a release.
include(FetchContent)
set(DLSIM_DEPENDENCY_MIRROR
    ""
    CACHE STRING "Folder or URL with the archives to take instead of those of their projects")

# Fetches and adds the library NAME as a static one, without its tests, programs and install rules:
# VERSION, SPDX name of its LICENSE, SHA256 of the archive at URL, FOLDER of its CMakeLists.txt
# there, and what to SET for it. FETCHCONTENT_SOURCE_DIR_<NAME> takes a folder instead.
function(dlsim_fetch name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "VERSION;LICENSE;SHA256;URL;FOLDER" SET)
  cmake_path(GET ARG_URL EXTENSION extension)
  string(REGEX MATCH "\\.tar\\.[a-z]+$" extension "${extension}")
  set(file ${name}-${ARG_VERSION}${extension})
  set(from ${ARG_URL})
  if(DLSIM_DEPENDENCY_MIRROR)
    set(from ${DLSIM_DEPENDENCY_MIRROR}/${file})
  endif()
  # A folder that is not there: the sources are added below, which leaves their install rules out.
  FetchContent_Declare(
    ${name}
    URL ${from}
    URL_HASH SHA256=${ARG_SHA256}
    DOWNLOAD_NAME ${file}
    DOWNLOAD_EXTRACT_TIMESTAMP ON
    SOURCE_SUBDIR added-by-dlsim)
  FetchContent_MakeAvailable(${name})
  string(TOLOWER ${name} lower)

  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW) # options of old projects take what is set here
  set(CMAKE_POLICY_VERSION_MINIMUM 3.5) # CMake 4 refuses those that name older ones
  set(CMAKE_WARN_DEPRECATED OFF)
  set(BUILD_SHARED_LIBS OFF)
  set(BUILD_TESTING OFF)
  foreach(setting IN LISTS ARG_SET)
    string(REPLACE "=" ";" setting ${setting})
    list(GET setting 0 variable)
    list(GET setting 1 ${variable})
  endforeach()
  add_subdirectory(${${lower}_SOURCE_DIR}/${ARG_FOLDER} ${${lower}_BINARY_DIR} EXCLUDE_FROM_ALL SYSTEM)

  set(entry "{}")
  foreach(field IN ITEMS version license sha256 url)
    string(TOUPPER ${field} variable)
    string(JSON entry SET "${entry}" ${field} "\"${ARG_${variable}}\"")
  endforeach()
  string(JSON entry SET "${entry}" source "\"${${lower}_SOURCE_DIR}\"")
  get_property(fetched GLOBAL PROPERTY dlsim_fetched)
  if(NOT fetched)
    set(fetched "{}")
  endif()
  string(JSON fetched SET "${fetched}" ${name} "${entry}")
  set_property(GLOBAL PROPERTY dlsim_fetched "${fetched}")
  file(WRITE ${PROJECT_BINARY_DIR}/fetched.json "${fetched}\n")
endfunction()

# What follows has the names of DlsimDependencies.cmake.
macro(dlsim_fetch_hwy)
  dlsim_fetch(
    hwy
    VERSION 1.2.0
    LICENSE Apache-2.0
    SHA256 7e0be78b8318e8bdbf6fa545d2ecb4c90f947df03f7aadc42c1967f019e63343
    URL https://github.com/google/highway/archive/refs/tags/1.2.0.tar.gz
    SET HWY_ENABLE_CONTRIB=OFF HWY_ENABLE_EXAMPLES=OFF HWY_ENABLE_INSTALL=OFF HWY_ENABLE_TESTS=OFF)
  if(NOT TARGET hwy::hwy)
    add_library(hwy::hwy ALIAS hwy)
  endif()
endmacro()

macro(dlsim_fetch_nlohmann_json)
  dlsim_fetch(
    nlohmann_json
    VERSION 3.11.3
    LICENSE MIT
    SHA256 0d8ef5af7f9794e3263480193c491549b2ba6cc74bb018906202ada498a79406
    URL https://github.com/nlohmann/json/archive/refs/tags/v3.11.3.tar.gz
    SET JSON_BuildTests=OFF JSON_Install=OFF)
endmacro()

macro(dlsim_fetch_CLI11)
  dlsim_fetch(
    CLI11
    VERSION 2.4.2
    LICENSE BSD-3-Clause
    SHA256 f2d893a65c3b1324c50d4e682c0cdc021dd0477ae2c048544f39eed6654b699a
    URL https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.4.2.tar.gz
    SET CLI11_BUILD_DOCS=OFF CLI11_BUILD_EXAMPLES=OFF CLI11_BUILD_TESTS=OFF CLI11_INSTALL=OFF)
endmacro()

macro(dlsim_fetch_fmt)
  dlsim_fetch(
    fmt
    VERSION 10.2.1
    LICENSE MIT
    SHA256 1250e4cc58bf06ee631567523f48848dc4596133e163f02615c97f78bab6c811
    URL https://github.com/fmtlib/fmt/archive/refs/tags/10.2.1.tar.gz
    SET FMT_DOC=OFF FMT_INSTALL=OFF FMT_TEST=OFF)
endmacro()

# Reads deflated members and nothing else; arc4random, which encryption would use, is of glibc 2.36.
macro(dlsim_fetch_libzip)
  dlsim_fetch(
    libzip
    VERSION 1.11.4
    LICENSE BSD-3-Clause
    SHA256 4844595615e2436e3cf1ed46a1b260fbdaf8b8fa8f2b594e8b5d8162c696b8b2
    URL https://github.com/nih-at/libzip/archive/refs/tags/v1.11.4.tar.gz
    SET BUILD_DOC=OFF BUILD_EXAMPLES=OFF BUILD_OSSFUZZ=OFF BUILD_REGRESS=OFF BUILD_TOOLS=OFF
        ENABLE_BZIP2=OFF ENABLE_COMMONCRYPTO=OFF ENABLE_GNUTLS=OFF ENABLE_LZMA=OFF
        ENABLE_MBEDTLS=OFF ENABLE_OPENSSL=OFF ENABLE_ZSTD=OFF HAVE_ARC4RANDOM=OFF
        LIBZIP_DO_INSTALL=OFF)
  add_library(PkgConfig::libzip ALIAS zip)
endmacro()

macro(dlsim_fetch_libxxhash)
  dlsim_fetch(
    libxxhash
    VERSION 0.8.3
    LICENSE BSD-2-Clause
    SHA256 aae608dfe8213dfd05d909a57718ef82f30722c392344583d3f39050c7f29a80
    URL https://github.com/Cyan4973/xxHash/archive/refs/tags/v0.8.3.tar.gz
    FOLDER cmake_unofficial
    SET XXHASH_BUILD_XXHSUM=OFF XXHASH_BUNDLED_MODE=ON)
  add_library(PkgConfig::libxxhash ALIAS xxhash)
endmacro()
