// SPDX-License-Identifier: Apache-2.0
// vpmm: header-only C++17 over the C ABI: arenas, parts of a pool with memory of their own.
// vpmm.hpp includes it.
#ifndef VPMM_ARENA_HPP
#define VPMM_ARENA_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "vpmm/enums.hpp"
#include "vpmm/pool.hpp"
#include "vpmm/result.hpp"
#include "vpmm/stream_ref.hpp"
#include "vpmm/tags.h"
#include "vpmm/vpmm.h"

namespace vpmm {

// Memory that was given to an external arena.
struct given_memory {
  void* ptr = nullptr;  // null: none
  std::size_t bytes = 0;
};

// An arena, which ends with the object: idle memory becomes available to everyone, and the rest
// follows when its live allocations are freed, by deallocate() of the pool. Movable; moved from, it
// is null: its calls are errors. Keeps a memory_pool that it was made from. vpmm.h has the rules.
class memory_arena {
 public:
  explicit memory_arena(shared_pool pool, arena_flags flags = arena_flags::none,
                        std::uint32_t tag = 0)
      : pool_(std::move(pool)) {
    vpmm_arena* made = nullptr;
    check(vpmm_arena_create(pool_.handle(), bits(flags), tag, &made));
    handle_.reset(made);
  }

  memory_arena(memory_arena&& other) noexcept = default;
  memory_arena& operator=(memory_arena&& other) noexcept {
    handle_ = std::move(other.handle_);  // the old arena ends before its pool may
    pool_ = std::move(other.pool_);
    return *this;
  }
  ~memory_arena() = default;

  vpmm_arena* handle() const noexcept { return handle_.get(); }
  const shared_pool& pool() const noexcept { return pool_; }
  std::uint64_t id() const {
    std::uint64_t id = 0;
    check(vpmm_arena_id(handle(), &id));
    return id;
  }

  // From here on, requests are of the library, as vpmm_library_tag() calls it.
  void set_library(std::uint32_t library) const {
    check(vpmm_arena_set_library(handle(), library));
  }
  // Memory for work queued on `stream` after the call.
  [[nodiscard]] void* allocate(std::size_t bytes, stream_ref stream,
                               std::size_t alignment = 0) const {
    return try_allocate(bytes, stream, alignment).value();
  }
  result<void*> try_allocate(std::size_t bytes, stream_ref stream,
                             std::size_t alignment = 0) const {
    void* ptr = nullptr;
    const vpmm_status status =
        vpmm_arena_allocate(handle(), bytes, alignment, stream.handle(), &ptr);
    return status == VPMM_OK ? result<void*>(ptr) : result<void*>::failed(status);
  }
  // Allocates free memory at its address; no work may use it.
  void allocate_at(void* ptr, std::size_t bytes, stream_ref stream) const {
    check(vpmm_arena_allocate_at(handle(), ptr, bytes, stream.handle()));
  }
  void pin() const { check(vpmm_arena_pin(handle())); }
  // Returns the bytes that went back to the pool.
  std::size_t trim() const {
    std::size_t released = 0;
    check(vpmm_arena_trim(handle(), &released));
    return released;
  }
  // Adds memory to an external arena. The memory stays the caller's.
  void add_memory(void* ptr, std::size_t bytes) const {
    check(vpmm_arena_add_memory(handle(), ptr, bytes));
  }
  // Waits for the GPU.
  given_memory take_memory() const {
    given_memory memory;
    check(vpmm_arena_take_memory(handle(), &memory.ptr, &memory.bytes));
    return memory;
  }
  // The addresses of live allocations, ascending.
  std::vector<void*> live() const {
    std::size_t count = 0;
    check(vpmm_arena_live(handle(), nullptr, 0, &count));
    std::vector<void*> ptrs(count);
    check(vpmm_arena_live(handle(), ptrs.data(), ptrs.size(), &count));
    ptrs.resize(count < ptrs.size() ? count : ptrs.size());
    return ptrs;
  }

  // As the methods of pool_ref with a tag.
  void suspend(suspend_flags flags = suspend_flags::none) const {
    check(vpmm_arena_suspend(handle(), bits(flags), nullptr));
  }
  void suspend_after(stream_ref stream, suspend_flags flags = suspend_flags::none) const {
    check(vpmm_arena_suspend(handle(), bits(flags) | VPMM_SUSPEND_AFTER_STREAM, stream.handle()));
  }
  void resume(resume_flags flags = resume_flags::none) const {
    check(vpmm_arena_resume(handle(), bits(flags)));
  }

 private:
  struct ending {
    // Fails only for an unknown arena.
    void operator()(vpmm_arena* arena) const noexcept { (void)vpmm_arena_release(arena); }
  };

  shared_pool pool_;
  std::unique_ptr<vpmm_arena, ending> handle_;
};

}  // namespace vpmm

#endif
