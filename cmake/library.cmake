# What users get: libvpmm.so, its headers, the command line and find_package(vpmm).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_target_property(capi_sources vpmm_capi SOURCES)
if(capi_sources)
  add_library(vpmm SHARED $<TARGET_OBJECTS:vpmm_capi> $<TARGET_OBJECTS:vpmm_emm>)
  add_library(vpmm::vpmm ALIAS vpmm)
  target_link_libraries(vpmm PRIVATE vpmm_ipc ${CMAKE_DL_LIBS})
  # The only symbols that leave the library are the C ABI's, whatever the libraries inside it export.
  # And it is never unloaded: a thread of it may be waiting for other processes.
  target_link_options(vpmm PRIVATE "LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/vpmm.map"
                                   "LINKER:-z,nodelete")
  set_target_properties(vpmm PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0 LINKER_LANGUAGE CXX
                                        LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/vpmm.map)
  target_include_directories(vpmm INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                            $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

  set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/vpmm)
  configure_package_config_file(cmake/vpmmConfig.cmake.in vpmmConfig.cmake INSTALL_DESTINATION ${package_folder})
  # Until 1.0 a minor version may change the interface.
  write_basic_package_version_file(vpmmConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(TARGETS vpmm EXPORT vpmmTargets)
  install(DIRECTORY include/vpmm DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT vpmmTargets NAMESPACE vpmm:: DESTINATION ${package_folder})
  install(FILES ${PROJECT_BINARY_DIR}/vpmmConfig.cmake ${PROJECT_BINARY_DIR}/vpmmConfigVersion.cmake
          DESTINATION ${package_folder})
endif()

file(GLOB cli_sources CONFIGURE_DEPENDS cli/*.cpp)
if(cli_sources)
  find_package(CLI11 REQUIRED)
  add_executable(vpmm_cli ${cli_sources})
  target_link_libraries(vpmm_cli PRIVATE vpmm_replay vpmm_conformance CLI11::CLI11 nlohmann_json::nlohmann_json)
  # A memory manager that is linked against libvpmm.so finds these here, and not a second library with a second driver.
  target_sources(vpmm_cli PRIVATE $<TARGET_OBJECTS:vpmm_capi> $<TARGET_OBJECTS:vpmm_emm>)
  target_include_directories(vpmm_cli PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(vpmm_cli PRIVATE VPMM_VERSION="${PROJECT_VERSION}")
  set_target_properties(vpmm_cli PROPERTIES OUTPUT_NAME vpmm RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin
                                            ENABLE_EXPORTS ON)
  install(TARGETS vpmm_cli)
endif()
