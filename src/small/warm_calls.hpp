// SPDX-License-Identifier: Apache-2.0
// small: calls that a stream's cache serves, under the lock of the cache alone.
#pragma once

#include <cstdint>
#include <optional>

#include "base/mutex.hpp"
#include "driver/driver.hpp"
#include "small/ownership.hpp"
#include "small/serving.hpp"
#include "small/stream_caches.hpp"

namespace vpmm::small {

// Any thread. Takes only locks of caches, and makes no driver call.
class alignas(kCacheLine) WarmCalls {
 public:
  // Uses the clock of `driver` and its observer of memory.
  WarmCalls(driver::Driver& driver, const Serving& serving, const Ownership& ownership,
            const StreamCaches& caches)
      : driver_(driver),
        observer_(driver.memory_observer()),
        serving_(serving),
        ownership_(ownership),
        caches_(caches) {}

  // The pool's lock: streams that find it taken crowd. Called before any other thread calls.
  void heed(const Mutex& lock) { lock_ = &lock; }

  using Stream = pool::Stream;
  // Cache of a stream, valid while that cache is in service for the stream with this id.
  struct FirstCache {
    StreamCache* cache = nullptr;  // null: the call takes the pool's lock
    driver::StreamId id{};
    Stream stream;  // none: any-stream
  };
  // Takes memory from the cache; null if it has none, or if the stream's next call is to take the
  // pool's lock. Requires: the client has a cache, and Serving::may_be_cached().
  DevicePtr try_allocate(const FirstCache& client, Bytes bytes) const;
  // `yes`: the address was a live allocation of that stream, and its memory is in the cache now. If
  // an event is due, the stream's call records one.
  enum class Freed { no, not_known, yes, yes_and_event_is_due };
  // Requires: the client has a cache.
  Freed try_free(const FirstCache& client, DevicePtr ptr);
  // Goes by the handle alone; `not_known` if the handle does not identify the stream of the memory.
  Freed try_free_by_handle(DevicePtr ptr, driver::StreamHandle stream);

 private:
  Freed put(const Location& at, DevicePtr ptr, const Stream& stream) const
      VPMM_REQUIRES(cache_lock);
  Freed put_span(StreamCache& cache, Segment& segment, DevicePtr ptr, const Stream& stream) const
      VPMM_REQUIRES(cache_lock);
  Freed put_block(StreamCache& cache, Slab& slab, DevicePtr ptr, const Stream& stream) const
      VPMM_REQUIRES(cache_lock);
  Freed put_pages(const Location& at, region::Region& region, DevicePtr ptr,
                  const Stream& stream) const VPMM_REQUIRES(cache_lock);
  DevicePtr try_block(const FirstCache& client, Bytes bytes) const;
  DevicePtr try_span(const FirstCache& client, Bytes bytes) const;
  DevicePtr try_pages(const FirstCache& client, Bytes bytes) const;
  static AddressRange take_span(StreamCache& cache, Bytes bytes) VPMM_REQUIRES(cache_lock);
  // Takes a span from cut pages, for a stream that crowds.
  AddressRange take_instead_of_pages(StreamCache& cache, Bytes bytes) const
      VPMM_REQUIRES(cache_lock);
  // Returns the begin of `taken`, which may be empty. Tells the observer under the cache's lock,
  // before another thread of the stream can free the memory.
  DevicePtr hand_out(const FirstCache& client, AddressRange taken) const VPMM_REQUIRES(cache_lock) {
    if (observer_ != nullptr && !is_null(taken.begin)) tell(client, taken);
    return taken.begin;
  }
  void tell(const FirstCache& client, AddressRange taken) const;
  Freed note_free(StreamCache& cache, AddressRange range, const Stream& stream) const
      VPMM_REQUIRES(cache_lock);
  // Tells if the free has to take the pool's lock, because the cache would keep too much.
  bool refuses(StreamCache& cache, Bytes more) const VPMM_REQUIRES(cache_lock) {
    return caches_.are_bounded() && cache.refuse(more);
  }

  driver::Driver& driver_;
  driver::MemoryObserver* const observer_;
  const Serving serving_;  // a copy, in the line that every call reads
  const Ownership& ownership_;
  const StreamCaches& caches_;
  const Mutex* lock_ = nullptr;  // null: no call waits for it
};

}  // namespace vpmm::small
