# SPDX-License-Identifier: Apache-2.0
# The licence notices of what is compiled into the library, its command line and the Python module, in one file: their
# licences ask for them in binary copies. The texts are those of the packages that this build uses.

# Adds the notices of `name` to `file`, from the first of the other arguments that exists.
function(vpmm_add_notices file name)
  foreach(source IN LISTS ARGN)
    if(EXISTS ${source})
      file(READ ${source} text)
      string(REGEX MATCH "^/\\*.*Copyright.*SOFTWARE\\.[^/]*\\*/" comment "${text}")
      if(comment)
        set(text "${comment}\n")
      endif()
      file(APPEND ${file} "==== ${name} ====\n\n${text}\n")
      return()
    endif()
  endforeach()
  message(STATUS "VPMM: the licence notices of ${name} are not among the files of its package; add them to binary copies")
endfunction()

function(vpmm_write_notices file)
  file(WRITE ${file} "VPMM is under the Apache License 2.0. Its binary files contain parts of these libraries.\n\n")
  foreach(package IN ITEMS "fmt libfmt-dev" "nlohmann-json nlohmann-json3-dev" "CLI11 libcli11-dev" "zstd libzstd-dev")
    string(REPLACE " " ";" package "${package}")
    list(GET package 0 name)
    list(GET package 1 debian)
    vpmm_add_notices(${file} ${name} /usr/share/doc/${debian}/copyright /usr/share/licenses/${name}/LICENSE
                     /usr/share/licenses/${name}/LICENSE.MIT)
  endforeach()
  # What zig's compiler links statically.
  foreach(folder IN LISTS CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
    if(folder MATCHES "(.*)/lib/libcxx/include$")
      set(zig ${CMAKE_MATCH_1})
      vpmm_add_notices(${file} libc++ ${zig}/lib/libcxx/LICENSE.TXT)
      vpmm_add_notices(${file} libc++abi ${zig}/lib/libcxxabi/LICENSE.TXT)
      vpmm_add_notices(${file} compiler-rt ${zig}/LICENSE)
    endif()
  endforeach()
endfunction()
