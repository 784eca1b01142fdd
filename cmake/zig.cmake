# SPDX-License-Identifier: Apache-2.0
# The toolchain of wheels: Clang and libc++ of the Python package ziglang, whose `python-zig` is on PATH, and the symbols
# of glibc 2.28. The other libraries are the system's. Of /usr/include what zig lacks is taken, so not glibc's headers.
set(CMAKE_LIBRARY_ARCHITECTURE ${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu)
set(options -target ${CMAKE_LIBRARY_ARCHITECTURE}.2.28 -idirafter /usr/include)
list(APPEND options -g0 -fomit-frame-pointer -flto) # without these it is a tenth slower than g++, and large
list(APPEND options -DFMT_CONSTEVAL=) # of fmt 10's own calls zig's Clang says that they are no constant expressions
set(CMAKE_C_COMPILER python-zig cc ${options})
set(CMAKE_CXX_COMPILER python-zig c++ ${options})
set(CMAKE_CXX_ARCHIVE_CREATE "python-zig ar qcs <TARGET> <OBJECTS>") # others may not know its objects
set(CMAKE_CXX_ARCHIVE_FINISH "")
# Stacks are unwound by the library that pthread_exit unwinds them with, instead of zig's own.
set(CMAKE_CXX_STANDARD_LIBRARIES
    "-Wl,--allow-shlib-undefined /lib/${CMAKE_LIBRARY_ARCHITECTURE}/libgcc_s.so.1")
