// SPDX-License-Identifier: Apache-2.0
// tools/mutation: chooses one fault of a program that holds many.
// Every source of a mutated tree includes it first. MUTANT names the fault that is active, from 1;
// none without it. MUTANTS_SEEN names a file with a byte for each fault, which is set when the
// program comes by. Of variables that begin with VPMM_ it would warn, as they are no settings.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

namespace vpmm_mutation {

inline int active = 0;
inline unsigned char* seen = nullptr;

// Before constructors of static objects, in each shared library.
[[gnu::constructor(101)]] static void begin() {
  if (const char* number = std::getenv("MUTANT")) active = std::atoi(number);
  const char* path = std::getenv("MUTANTS_SEEN");
  if (path == nullptr || seen != nullptr) return;
  const int file = open(path, O_RDWR | O_CLOEXEC);
  const off_t size = lseek(file, 0, SEEK_END);
  void* bytes =
      mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (bytes != MAP_FAILED) seen = static_cast<unsigned char*>(bytes);
  close(file);
}

// False in what the compiler computes: constants keep their values.
constexpr bool is_active(int fault) {
  if (__builtin_is_constant_evaluated()) return false;
  if (seen != nullptr) seen[fault] = 1;
  return fault == active;
}

}  // namespace vpmm_mutation

#define VPMM_MUTANT(fault) ::vpmm_mutation::is_active(fault)
