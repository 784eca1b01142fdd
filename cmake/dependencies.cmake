# What the library is built with. A project around this one may bring the targets itself.
function(vpmm_need package target debian)
  if(TARGET ${target})
    return()
  endif()
  find_package(${package} QUIET GLOBAL)
  if(NOT TARGET ${target})
    message(FATAL_ERROR "VPMM is built with ${package}, and CMake finds no package of that name with the target "
                        "${target}. On Debian and Ubuntu: apt install ${debian}. Elsewhere CMAKE_PREFIX_PATH names the "
                        "folder where it is installed.")
  endif()
  set(${package}_VERSION "${${package}_VERSION}" PARENT_SCOPE)
endfunction()

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
  message(FATAL_ERROR "VPMM is built with zstd, which is not found. On Debian and Ubuntu: apt install libzstd-dev.")
endif()
