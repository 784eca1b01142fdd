// SPDX-License-Identifier: Apache-2.0
// tests: preloaded between PyTorch's plugin and libvpmm; lets named calls fail, and allocates for
// another library while a question is answered.
#include <dlfcn.h>
#include <vpmm/vpmm.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <utility>

namespace {

std::mutex mutex;
const char* failing = "";  // the function whose next call fails
vpmm_status status = VPMM_OK;
int failed = 0;
std::size_t others_bytes = 0;  // that another library allocates before the next question returns
void* others = nullptr;

bool take_failure(std::string_view name) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (name != failing) return false;
  failing = "";
  ++failed;
  return true;
}

// RTLD_NEXT does not find libvpmm: Python loads it with RTLD_LOCAL.
template <class Function>
Function* own(const char* name) {
  const char* const path = std::getenv("LIBRARY_OF_VPMM");
  void* const library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  void* const found = library == nullptr ? nullptr : dlsym(library, name);
  if (found == nullptr) std::abort();
  return reinterpret_cast<Function*>(found);
}

}  // namespace

#define OWN(name) own<decltype(name)>(#name)
#define TESTED extern "C" __attribute__((visibility("default")))

// `name` lives as long as the process.
TESTED void fail_next(const char* name, int with) {
  const std::lock_guard<std::mutex> lock(mutex);
  failing = name;
  status = static_cast<vpmm_status>(with);
}
TESTED int calls_failed() { return failed; }
TESTED void allocate_during_next_question(std::size_t bytes) { others_bytes = bytes; }

TESTED vpmm_status vpmm_deallocate(vpmm_pool* pool, void* ptr, vpmm_stream stream) {
  const bool fails = take_failure("vpmm_deallocate");
  return fails ? status : OWN(vpmm_deallocate)(pool, ptr, stream);
}

TESTED vpmm_status vpmm_arena_id(vpmm_arena* arena, std::uint64_t* id) {
  const bool fails = take_failure("vpmm_arena_id");
  return fails ? status : OWN(vpmm_arena_id)(arena, id);
}

TESTED vpmm_status vpmm_arena_set_library(vpmm_arena* arena, std::uint32_t library) {
  const bool fails = take_failure("vpmm_arena_set_library");
  return fails ? status : OWN(vpmm_arena_set_library)(arena, library);
}

TESTED vpmm_status vpmm_layout_take(vpmm_pool* pool, vpmm_layout* layout) {
  const bool fails = take_failure("vpmm_layout_take");
  return fails ? status : OWN(vpmm_layout_take)(pool, layout);
}

TESTED vpmm_status vpmm_get_statistics(vpmm_pool* pool, vpmm_statistics* statistics) {
  const vpmm_status answer = OWN(vpmm_get_statistics)(pool, statistics);
  const std::size_t bytes = std::exchange(others_bytes, 0);
  if (bytes != 0) OWN(vpmm_allocate)(pool, bytes, nullptr, &others);
  return answer;
}
