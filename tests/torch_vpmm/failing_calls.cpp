// SPDX-License-Identifier: Apache-2.0
// tests: stands between PyTorch's plugin and the library when it is preloaded, lets calls fail, and
// does meanwhile what another library might.
#include <dlfcn.h>
#include <vpmm/vpmm.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

namespace {

std::string failing;  // the function whose next call fails; empty: none
vpmm_status status = VPMM_OK;
int failed = 0;
std::size_t others_bytes = 0;  // another library allocates during the next question
void* others = nullptr;

bool is_to_fail(const char* name) {
  if (failing != name) return false;
  failing.clear();
  ++failed;
  return true;
}

// The plugin's library is not among those in whose order the linker looks on from here.
template <class Function>
Function* own(const char* name) {
  static void* const library = dlopen(std::getenv("LIBRARY_OF_VPMM"), RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

#define OWN(name) own<decltype(name)>(#name)
#define TESTED extern "C" __attribute__((visibility("default")))

TESTED void fail_next(const char* name, int with) {
  failing = name;
  status = static_cast<vpmm_status>(with);
}
TESTED int calls_failed() { return failed; }
TESTED void allocate_during_next_question(std::size_t bytes) { others_bytes = bytes; }

TESTED vpmm_status vpmm_deallocate(vpmm_pool* pool, void* ptr, vpmm_stream stream) {
  if (is_to_fail("vpmm_deallocate")) return status;
  return OWN(vpmm_deallocate)(pool, ptr, stream);
}

TESTED vpmm_status vpmm_arena_id(vpmm_arena* arena, std::uint64_t* id) {
  if (is_to_fail("vpmm_arena_id")) return status;
  return OWN(vpmm_arena_id)(arena, id);
}

TESTED vpmm_status vpmm_arena_set_library(vpmm_arena* arena, std::uint32_t library) {
  if (is_to_fail("vpmm_arena_set_library")) return status;
  return OWN(vpmm_arena_set_library)(arena, library);
}

TESTED vpmm_status vpmm_get_statistics(vpmm_pool* pool, vpmm_statistics* statistics) {
  const vpmm_status answer = OWN(vpmm_get_statistics)(pool, statistics);
  if (const std::size_t bytes = std::exchange(others_bytes, 0); bytes != 0)
    OWN(vpmm_allocate)(pool, bytes, nullptr, &others);
  return answer;
}
