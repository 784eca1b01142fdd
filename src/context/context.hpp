// SPDX-License-Identifier: Apache-2.0
// context: one pool on one device, for users: requests, frees, and groups of other calls.
#pragma once

#include <memory>
#include <span>

#include "base/address.hpp"
#include "base/result.hpp"
#include "context/allocation_info.hpp"
#include "context/arena_calls.hpp"
#include "context/bound_stream.hpp"
#include "context/drawing.hpp"
#include "context/entrance.hpp"
#include "context/hits.hpp"
#include "context/limits.hpp"
#include "context/parts.hpp"
#include "context/reports.hpp"
#include "context/sharing.hpp"
#include "context/shortages.hpp"
#include "context/stream_calls.hpp"
#include "context/suspension.hpp"
#include "context/totals.hpp"

namespace vpmm::context {

// All calls are thread-safe, with any or no CUDA context current; the caller's current context is
// restored. They wait for the GPU where they say so, and before memory runs out.
class Context {
 public:
  // `driver` must outlive the context. If the device's CUDA context is active, prepares the first
  // allocation: reserves address space, and creates and gives back one page.
  static Result<std::unique_ptr<Context>> create(driver::Driver& driver,
                                                 driver::DeviceOrdinal device,
                                                 const settings::Config& config);
  Context(driver::Driver& driver, driver::DeviceOrdinal device, const settings::Config& config,
          const DeviceTraits& traits, AtEnd at_end);
  // Waits for the GPU and gives everything back, unless the process is ending.
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Returns memory for work queued on the stream after the call; null for zero bytes. In an arena,
  // memory that a stream freed serves that stream at once, also in a capture, and others once its
  // work is proven complete, unless the arena is pinned. A capturing stream pins the arena.
  Result<DevicePtr> allocate(const pool::Request& request);
  // Any-stream memory, without driver calls, and without waits for locks held across them. Null:
  // none, or an error that allocate() reports.
  DevicePtr allocate_if_ready(Bytes bytes, Bytes alignment);
  // Memory that the stream freed and cached. Asks the driver about the stream, and takes no lock
  // but the cache's. Null: as above.
  DevicePtr allocate_if_ready(Bytes bytes, Bytes alignment, driver::StreamHandle stream);
  // Allocates all `bytes[i]` into out[i], or none. invalid_argument: different lengths.
  Result<void> allocate_many(std::span<const Bytes> bytes, pool::Stream stream,
                             std::span<DevicePtr> out);
  // The last use of the memory is work queued before the call on `stream`, or on streams named with
  // record_use.
  Result<void> deallocate(DevicePtr ptr, pool::Stream stream);
  // Frees into the stream's cache, under the conditions of allocate_if_ready. Returns false if
  // nothing changed.
  bool deallocate_if_ready(DevicePtr ptr, driver::StreamHandle stream);
  // Frees all live allocations. Returns the first error.
  Result<void> deallocate_many(std::span<const DevicePtr> pointers, pool::Stream stream);
  // For finalizers: an any-stream free on a lock-free list; no lock, no driver call, no wait.
  void deallocate_deferred(DevicePtr ptr) noexcept;
  // `stream` may not be capturing.
  Result<std::unique_ptr<BoundStream>> bind(driver::StreamHandle stream);
  // invalid_pointer: `ptr` does not start a live allocation.
  Result<void> record_use(DevicePtr ptr, driver::StreamHandle stream);
  Result<AllocationInfo> query(DevicePtr ptr) const;  // `ptr` may point inside an allocation

  ArenaCalls& arenas() { return arena_calls_; }
  StreamCalls& streams() { return stream_calls_; }
  Limits& limits() { return limits_; }
  Reports& reports() { return reports_; }
  Sharing& sharing() { return sharing_; }
  Suspension& suspension() { return suspension_; }
  const settings::Config& config() const { return parts_.device.config; }  // as in force
  driver::DeviceOrdinal device() const { return parts_.device.primary.device(); }
  driver::Driver& driver() { return parts_.device.inner; }

 private:
  friend class BoundStream;
  using Freed = small::WarmCalls::Freed;
  using Way = StreamFront::Way;
  using Client = StreamFront::Client;
  void prepare();
  void join_neighbourhood();
  // --- fast_path.cpp ---
  DevicePtr try_allocate(const Way& way, const Client& client, Bytes bytes, Bytes alignment);
  DevicePtr try_once(const Way& way, const Client& client, Bytes bytes, Bytes alignment);
  Freed try_free(const Way& way, const Client& client, DevicePtr ptr);
  Freed try_free(const Way& way, DevicePtr ptr, driver::StreamHandle stream);
  [[gnu::noinline]] void record(report::CallLog& log, const Client& client, DevicePtr begin,
                                Bytes bytes);
  [[gnu::noinline]] Freed free_and_record(report::CallLog& log, const Client& client,
                                          DevicePtr ptr);
  bool is_freed(Freed freed, const pool::Stream& stream, const time::TimelineId* bound);
  void record_due_event(const pool::Stream& stream, const time::TimelineId* bound) noexcept;
  void free_surely(DevicePtr ptr, pool::Stream stream) noexcept;
  // --- context.cpp; `bound`: timeline of a bound stream, or null ---
  Result<DevicePtr> allocate_slowly(pool::Request request, const time::TimelineId* bound);
  Result<DevicePtr> attempt(pool::Request& routed, const time::TimelineId* bound,
                            Limits::Asked& asked, report::CallLog::By& by);
  void tell_failure(const pool::Request& request, Error& error, const Limits::Asked& asked,
                    const report::CallLog::By& by);
  Result<void> deallocate_slowly(DevicePtr ptr, const pool::Stream& stream,
                                 const time::TimelineId* bound);

  Parts parts_;
  Device& device_;
  Totals totals_;
  Drawing drawing_;
  Entrance entrance_;
  Hits hits_;
  Shortages shortages_;
  ArenaCalls arena_calls_;
  StreamCalls stream_calls_;
  Limits limits_;
  Reports reports_;
  Sharing sharing_;
  Suspension suspension_;
};

}  // namespace vpmm::context
