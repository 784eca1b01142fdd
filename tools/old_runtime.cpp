// SPDX-License-Identifier: Apache-2.0
// tools: for the plugins of wheels: what g++ makes calls of, and libraries of manylinux_2_28 lack
//
// It is linked, hidden, into the plugins for PyTorch, which then run with the oldest libstdc++ and
// glibc that PyTorch itself does. auditwheel ends `./dev wheel` if a plugin needs more.

#include <sstream>

extern "C" {
// glibc's says when counting references needs no atomic operations. This one: never.
char __libc_single_threaded = 0;

// Since GCC 11 copies of an exception pointer are inline, and call the last two of these. Every
// version of the library has the first two. C++ has no other way to name any of them.
void vpmm_copy(void** to, void* const* from) noexcept
    __asm__("_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
void vpmm_destroy(void** pointer) noexcept __asm__("_ZNSt15__exception_ptr13exception_ptrD1Ev");
void vpmm_addref(void* const* pointer) noexcept
    __asm__("_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void vpmm_release(void** pointer) noexcept
    __asm__("_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");

void vpmm_addref(void* const* pointer) noexcept {
  void* copy = nullptr;
  vpmm_copy(&copy, pointer);
}

void vpmm_release(void** pointer) noexcept {
  vpmm_destroy(pointer);
  *pointer = nullptr;
}
}

// Of C++20; headers of PyTorch 2.11 call it.
template std::string std::stringbuf::str() const&;
