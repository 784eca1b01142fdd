# SPDX-License-Identifier: Apache-2.0
# What the library is built with. A project around this one may bring the targets itself.
set(VPMM_MISSING "")
set(VPMM_MISSING_DEBIAN "")
macro(vpmm_miss package debian)
  list(APPEND VPMM_MISSING "${package}")
  list(APPEND VPMM_MISSING_DEBIAN ${debian})
endmacro()

macro(vpmm_need package target debian)
  if(NOT TARGET ${target})
    find_package(${package} QUIET GLOBAL)
    if(NOT TARGET ${target})
      vpmm_miss("${package} (target ${target})" ${debian})
    endif()
  endif()
endmacro()

find_package(Threads REQUIRED)
vpmm_need(fmt fmt::fmt-header-only libfmt-dev)
vpmm_need(ZLIB ZLIB::ZLIB zlib1g-dev)
vpmm_need(nlohmann_json nlohmann_json::nlohmann_json nlohmann-json3-dev)
if(VPMM_CLI)
  vpmm_need(CLI11 CLI11::CLI11 libcli11-dev)
endif()
# Static where it is there: libvpmm.so then needs no libzstd.
find_library(VPMM_ZSTD_LIBRARY NAMES libzstd.a zstd)
find_path(VPMM_ZSTD_INCLUDE zstd.h)
if(NOT VPMM_ZSTD_LIBRARY OR NOT VPMM_ZSTD_INCLUDE)
  vpmm_miss("zstd (zstd.h and its library)" libzstd-dev)
endif()
if(VPMM_MISSING)
  list(JOIN VPMM_MISSING ", " VPMM_MISSING)
  list(JOIN VPMM_MISSING_DEBIAN " " VPMM_MISSING_DEBIAN)
  message(FATAL_ERROR "VPMM is built with packages that CMake does not find: ${VPMM_MISSING}. On Debian and Ubuntu: apt "
                      "install ${VPMM_MISSING_DEBIAN}. Elsewhere CMAKE_PREFIX_PATH names the folders where they are "
                      "installed.")
endif()
