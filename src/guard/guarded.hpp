// SPDX-License-Identifier: Apache-2.0
// guard: allocations with pages of their own between unmapped addresses, for VPMM_GUARD.
//
// Note [A guarded allocation ends at unmapped addresses]
//
//   unmapped | idle | margin | the allocation | margin | unmapped, at least a page
//            ^ begin of its own pages                  ^ end of its own pages
//
// It lies as near the end of its pages as its alignment allows, so that a kernel that goes beyond
// faults at once. What the alignment leaves is a margin: filled when the allocation begins, and
// compared when its pages are unmapped. A smaller margin lies before it. Freed, it is unmapped once
// the work of its streams is complete, and its addresses stay out of use until all guarded address
// space has been used.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/address.hpp"
#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"
#include "observe/stack_table.hpp"
#include "pool/request.hpp"
#include "time/timelines.hpp"
#include "vm/mapper.hpp"

namespace vpmm::guard {

// An allocation or a free.
struct Moment {
  std::uint64_t at_ns = 0;  // 0: has not come
  std::optional<driver::StreamId> stream;
  std::uint32_t stack = 0;  // of capture_stack(); 0: not known
};

struct Block {
  enum class Stage {
    coming,  // its pages are being mapped
    live,    // of a user
    freed,   // its user's work may not be complete, or its pages are being unmapped
    gone     // unmapped; its addresses are out of use
  };
  // Comparison of the margins. Written by the thread that maps or unmaps, also without the lock.
  struct Judgement {
    bool is_done = true;  // as long as no margins are filled
    bool found_damage = false;
  };
  // True if a margin was overwritten; known once the block is gone.
  bool is_damaged() const { return stage == Stage::gone && judgement.found_damage; }

  AddressRange range;   // as requested
  AddressRange mapped;  // its own pages
  AddressRange slot;    // its pages, and the unmapped addresses behind
  Stage stage = Stage::coming;
  // Both of the thread that maps or unmaps it, without the lock.
  driver::ChunkHandle chunk{};  // null: released
  bool is_mapped = false;
  Judgement judgement;
  std::optional<time::TimelineId> timeline;  // of the allocating stream; nullopt: any-stream
  Vector<time::TimelineId> other_uses;       // streams named with record_use
  time::Stamp stamp;                         // of the free
  std::size_t looks = 0;                     // at which no event will prove the stamp
  std::uint64_t number = 0;                  // the n-th guarded allocation
  std::uint64_t dead_contexts = 0;           // before its allocation
  std::uint32_t tag = 0;
  Moment allocated;
  Moment freed;
};

struct Options {
  Bytes page = 0;           // the device's granularity
  Bytes address_space = 0;  // taken at the first guarded allocation
  std::uint64_t every = 1;  // guards one allocation in `every`
  // A free without a stream does not wait for every stream, so margins are filled on none of them.
  bool fills_apart = false;
  std::size_t remembered = 65'536;  // most blocks that are gone and still known
};

struct GuardFigures {
  Bytes requested = 0;  // of live blocks
  Bytes allocated = 0;  // pages of live blocks
  Bytes mapped = 0;     // pages of all blocks
  std::uint64_t live = 0;
  std::uint64_t mappings = 0;
  std::uint64_t allocations = 0;
  std::uint64_t unguarded = 0;  // requests that could not be guarded
  std::uint64_t damaged = 0;    // blocks with an overwritten margin
  std::uint64_t chunks_created = 0;
  std::uint64_t chunks_released = 0;
};

// Chooses each n-th request. Any thread.
class Sampler {
 public:
  explicit Sampler(std::uint64_t every) : every_(every) {}
  bool takes_all() const { return every_ == 1; }
  // Counts a request that a cache is about to serve. True: it is one to guard, and the cache leaves
  // it.
  bool is_to_leave() {
    if (was_left_.load(std::memory_order_relaxed)) return true;  // a second try of the same request
    if (!is_next()) return false;
    was_left_.store(true, std::memory_order_relaxed);
    return true;
  }
  // A try that is_to_leave() counted found no memory: the request comes again.
  void count_again() {
    if (!was_left_.load(std::memory_order_relaxed))
      counted_.fetch_sub(1, std::memory_order_relaxed);
  }
  // Tells if a request that no cache serves is one to guard. `was_counted`: by is_to_leave().
  bool is_to_guard(bool was_counted) {
    return was_left_.exchange(false, std::memory_order_relaxed) || (!was_counted && is_next());
  }

 private:
  bool is_next() { return counted_.fetch_add(1, std::memory_order_relaxed) % every_ == 0; }

  const std::uint64_t every_;
  std::atomic<std::uint64_t> counted_{0};  // requests
  std::atomic<bool> was_left_{false};      // by a cache
};

// Methods with a `lock` drop it around driver calls.
class Guarded {
 public:
  Guarded(driver::Driver& driver, const driver::ChunkProperties& chunk, time::Timelines& timelines,
          const Options& options);

  Sampler& sampler() { return sampler_; }
  void count_unguarded() VPMM_REQUIRES(pool_lock) { ++figures_.unguarded; }
  const GuardFigures& figures() const VPMM_REQUIRES(pool_lock) { return figures_; }

  // Bytes that the allocation would map. 0: its alignment does not allow it.
  Bytes pages_for(Bytes bytes, Bytes alignment) const;
  // Null: no address space is left.
  Result<DevicePtr> allocate(MutexLock& lock, const pool::Request& request,
                             const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Live allocation around `p`; null if none.
  Block* live_around(DevicePtr p) VPMM_REQUIRES(pool_lock);
  // Known block, dead or alive, with `p` in its slot; null if none.
  const Block* known_around(DevicePtr p) const VPMM_REQUIRES(pool_lock);
  // Known block whose slot begins first behind `p`; null if none.
  const Block* known_behind(DevicePtr p) const VPMM_REQUIRES(pool_lock);
  // At most `most` known blocks, the newest first.
  Vector<const Block*> newest(std::size_t most) const VPMM_REQUIRES(pool_lock);
  void free(Block& block, const time::Stamp& stamp, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);

  // --- stacks of allocations and frees; any thread ---
  // False: `p` is in no guarded allocation, so its free needs no stack.
  bool may_hold(DevicePtr p) const {
    const std::uint64_t begin = begin_.load(std::memory_order_relaxed);
    return begin != 0 && to_integer(p) - begin < options_.address_space;
  }
  // Number of this thread's stack; 0: not known. Call without the pool's lock:
  // CallLog::capture_stack().
  std::uint32_t capture_stack() noexcept { return stacks_.capture({true, true}); }
  const observe::StackTable& stacks() const { return stacks_; }

  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t kPerCall = 16;
  // Compares the margins of freed blocks whose work is complete, and unmaps them: at most `most`.
  Result<void> settle(MutexLock& lock, std::size_t most = kPerCall) VPMM_REQUIRES(pool_lock);
  bool has_freed() const VPMM_REQUIRES(pool_lock) { return !freed_.empty() || is_settling_; }
  // True once if freed blocks wait for streams that have not called for long: their work needs an
  // event from elsewhere.
  bool takes_lack_of_proof() VPMM_REQUIRES(pool_lock) { return std::exchange(lacks_proof_, false); }
  // The context has died, and with it the own stream and perhaps fills of margins, so that those
  // are not compared any more.
  void forget_context() VPMM_REQUIRES(pool_lock) {
    own_stream_ = {};
    ++dead_contexts_;
  }
  // At the end: no call may follow. Requires: the GPU is idle.
  void release_everything() VPMM_REQUIRES(pool_lock);

  bool owns_part_of(AddressRange memory) const VPMM_REQUIRES(pool_lock) {
    return reservation_.overlaps(memory);  // null before it is made: overlaps none
  }
  void for_each(FunctionRef<void(const Block&)> visit) const VPMM_REQUIRES(pool_lock) {
    for (const auto& [begin, block] : blocks_) visit(block);
  }
  Bytes reserved_bytes() const VPMM_REQUIRES(pool_lock) { return reservation_.size; }
  std::string validate() const VPMM_REQUIRES(pool_lock);

 private:
  using BySlot = Map<DevicePtr, Block>;  // by the begin of the slot
  struct Margins {
    AddressRange before;
    AddressRange after;
    Bytes size() const { return before.size + after.size; }
  };
  static Margins margins_of(const Block& block);
  Result<void> open() VPMM_REQUIRES(pool_lock);
  std::optional<AddressRange> find_slot(Bytes pages) VPMM_REQUIRES(pool_lock);
  bool make_way(AddressRange slot, DevicePtr& next) VPMM_REQUIRES(pool_lock);
  Result<void> leave(MutexLock& lock, const Vector<Block*>& leaving) VPMM_REQUIRES(pool_lock);
  void look_for_proof(Block& block) VPMM_REQUIRES(pool_lock);
  void drop_old_margins(Block& block) const VPMM_REQUIRES(pool_lock);
  void remember() VPMM_REQUIRES(pool_lock);
  void count_mapped(const Block& block, int change) VPMM_REQUIRES(pool_lock);
  Moment moment_of(const pool::Caller& caller, std::uint32_t stack) const VPMM_REQUIRES(pool_lock);
  // --- without the pool's lock ---
  Result<void> map(Block& block, driver::StreamHandle stream, bool is_for_any_stream);
  Result<void> fill(const Block& block, driver::StreamHandle stream, bool is_for_any_stream);
  Result<void> unmap(Block& block);
  Result<void> compare(const Vector<Block*>& leaving, driver::StreamHandle own);
  static void judge(Block& block, const std::byte* found);

  driver::Driver& driver_;
  time::Timelines& timelines_;
  const Options options_;
  vm::Mapper mapper_;
  driver::StreamHandle own_stream_
      VPMM_GUARDED_BY(pool_lock){};  // non-blocking; for copies of margins
  std::uint64_t dead_contexts_ VPMM_GUARDED_BY(pool_lock) = 0;
  AddressRange reservation_ VPMM_GUARDED_BY(pool_lock);
  DevicePtr next_ VPMM_GUARDED_BY(pool_lock){};  // where the search for a slot begins
  BySlot blocks_ VPMM_GUARDED_BY(pool_lock);
  Deque<DevicePtr> freed_ VPMM_GUARDED_BY(pool_lock);  // slots, oldest first
  struct Gone {
    DevicePtr slot{};
    std::uint64_t number = 0;
  };
  Deque<Gone> gone_ VPMM_GUARDED_BY(pool_lock);  // oldest first; some are forgotten already
  Vector<std::byte> margins_;                    // of one batch; used by the thread that settles
  bool is_settling_ VPMM_GUARDED_BY(pool_lock) = false;
  bool lacks_proof_ VPMM_GUARDED_BY(pool_lock) = false;
  std::condition_variable_any settled_;
  std::atomic<std::uint64_t> begin_{0};  // of the reservation; 0: there is none yet
  observe::StackTable stacks_;
  Sampler sampler_;
  GuardFigures figures_ VPMM_GUARDED_BY(pool_lock);
};

}  // namespace vpmm::guard
