# SPDX-License-Identifier: Apache-2.0
# find_package(vpmm) of the Python package: its library and its headers are the target vpmm::vpmm.
get_filename_component(vpmm_package "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
if(NOT TARGET vpmm::vpmm)
  add_library(vpmm::vpmm SHARED IMPORTED)
  set_target_properties(vpmm::vpmm PROPERTIES
    IMPORTED_LOCATION ${vpmm_package}/libvpmm.so.0
    IMPORTED_SONAME libvpmm.so.0
    INTERFACE_INCLUDE_DIRECTORIES ${vpmm_package}/include)
endif()
