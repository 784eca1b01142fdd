# SPDX-License-Identifier: Apache-2.0
# What users get: libvpmm.so or libvpmm.a, its headers, the command line, find_package(vpmm) and pkg-config's vpmm.pc.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# A parent that wants static libraries gets this one static, too.
set(vpmm_kind SHARED)
if(DEFINED BUILD_SHARED_LIBS AND NOT BUILD_SHARED_LIBS)
  set(vpmm_kind STATIC)
endif()

# The rooms that a user can reach. The other two serve the command line.
foreach(room base observe settings process report driver driver_cuda driver_sim time region arena guard vm pool small driver_pool host_copy context ipc capi emm)
  list(APPEND vpmm_objects $<TARGET_OBJECTS:vpmm_${room}>)
endforeach()

# vpmm_library(target SHARED|STATIC exported_name)
function(vpmm_library target kind exported_name)
  add_library(${target} ${kind} ${vpmm_objects})
  set(zstd ${VPMM_ZSTD_LIBRARY})
  if(kind STREQUAL STATIC)
    set(zstd zstd) # by name: where it is linked the file may lie elsewhere
  endif()
  target_link_libraries(${target} PRIVATE Threads::Threads ZLIB::ZLIB ${zstd} ${CMAKE_DL_LIBS}
                                          $<BUILD_INTERFACE:vpmm_flags>)
  target_include_directories(${target} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                 $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME vpmm EXPORT_NAME ${exported_name} LINKER_LANGUAGE CXX)
  if(kind STREQUAL SHARED)
    # The only symbols that leave the library are the C ABI's, whatever the libraries inside it export.
    # And it is never unloaded: a thread of it may be waiting for other processes.
    target_link_options(${target} PRIVATE "LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/vpmm.map"
                                          "LINKER:-z,nodelete")
    if(NOT VPMM_SANITIZE) # their functions are the program's
      target_link_options(${target} PRIVATE "LINKER:-z,defs") # a room left out of the list above fails here
    endif()
    set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0
                                               LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/vpmm.map)
  endif()
  if(VPMM_INSTALL)
    install(TARGETS ${target} EXPORT vpmmTargets)
  endif()
endfunction()

vpmm_library(vpmm ${vpmm_kind} vpmm)
add_library(vpmm::vpmm ALIAS vpmm)
if(VPMM_STATIC AND vpmm_kind STREQUAL SHARED)
  vpmm_library(vpmm_static STATIC static) # of the same objects
  add_library(vpmm::static ALIAS vpmm_static)
endif()

if(VPMM_CLI)
  file(GLOB cli_sources CONFIGURE_DEPENDS cli/*.cpp)
  add_executable(vpmm_cli ${cli_sources})
  target_link_libraries(vpmm_cli PRIVATE vpmm_replay vpmm_conformance CLI11::CLI11 nlohmann_json::nlohmann_json)
  # A memory manager that is linked against libvpmm.so finds these here, and not a second library with a second driver.
  target_sources(vpmm_cli PRIVATE $<TARGET_OBJECTS:vpmm_capi> $<TARGET_OBJECTS:vpmm_emm>)
  target_include_directories(vpmm_cli PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(vpmm_cli PRIVATE VPMM_VERSION="${PROJECT_VERSION}")
  set_target_properties(vpmm_cli PROPERTIES OUTPUT_NAME vpmm RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin
                                            ENABLE_EXPORTS ON UNITY_BUILD ${VPMM_UNITY}
                                            UNITY_BUILD_BATCH_SIZE 8)
endif()

if(VPMM_INSTALL)
  include(cmake/install.cmake)
endif()
