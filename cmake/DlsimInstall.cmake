# SPDX-License-Identifier: Apache-2.0
# Install rules: the command, the libraries with their headers, and the CMake package.
include(CMakePackageConfigHelpers)

install(TARGETS dlsim_command RUNTIME)
get_property(dlsim_fetched GLOBAL PROPERTY dlsim_fetched)
if(dlsim_fetched)
  message(STATUS "dlsim installs the command alone: its libraries would need those that were fetched")
  return()
endif()
install(TARGETS dlsim_core dlsim_sim EXPORT dlsim-targets FILE_SET HEADERS)
if(DLSIM_ENABLE_CUDA)
  install(TARGETS dlsim_gpu EXPORT dlsim-targets FILE_SET HEADERS)
endif()
install(
  EXPORT dlsim-targets
  NAMESPACE dlsim::
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/dlsim)
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/dlsim-config.cmake.in ${PROJECT_BINARY_DIR}/dlsim-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/dlsim)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/dlsim-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/dlsim-config.cmake
              ${PROJECT_BINARY_DIR}/dlsim-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/dlsim)
