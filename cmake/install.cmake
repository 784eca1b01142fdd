# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` leaves behind beside the library itself.
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/vpmm)
configure_package_config_file(cmake/vpmmConfig.cmake.in vpmmConfig.cmake INSTALL_DESTINATION ${package_folder})
# Until 1.0 a minor version may change the interface.
write_basic_package_version_file(vpmmConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT vpmmTargets NAMESPACE vpmm:: DESTINATION ${package_folder})
install(FILES ${PROJECT_BINARY_DIR}/vpmmConfig.cmake ${PROJECT_BINARY_DIR}/vpmmConfigVersion.cmake
        DESTINATION ${package_folder})

# Relative to the file, so that a folder that is moved goes on working.
file(RELATIVE_PATH vpmm_prefix_of_pc ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/vpmm.pc.in vpmm.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/vpmm.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(DIRECTORY include/vpmm DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
include(cmake/notices.cmake)
vpmm_write_notices(${PROJECT_BINARY_DIR}/THIRD-PARTY-NOTICES)
install(FILES LICENSE ${PROJECT_BINARY_DIR}/THIRD-PARTY-NOTICES DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(VPMM_CLI)
  install(TARGETS vpmm_cli)
endif()
