// context: one pool on one device, as users see it: requests, frees, and all that the device has.
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
#include "context/limits.hpp"
#include "context/parts.hpp"
#include "context/reports.hpp"
#include "context/sharing.hpp"
#include "context/shortages.hpp"
#include "context/stream_calls.hpp"
#include "context/totals.hpp"

namespace vpmm::context {

// All calls are thread-safe and may be made with any or no CUDA context current; the caller's
// current context is restored. They wait for the GPU only where memory would otherwise run out, and
// where they say so.
class Context {
 public:
  // `driver` must outlive the context. Where the device's CUDA context is active already, address
  // space is reserved at once, and one page is created and given back, so that the first allocation
  // finds everything ready; otherwise nothing is touched before that. No memory stays.
  static Result<std::unique_ptr<Context>> create(driver::Driver& driver,
                                                 driver::DeviceOrdinal device,
                                                 const settings::Config& config);
  Context(driver::Driver& driver, driver::DeviceOrdinal device, const settings::Config& config,
          const DeviceTraits& traits, AtEnd at_end);
  // Waits for the GPU and gives everything back, unless the process is ending.
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Memory that work queued on the stream after the call may use. Zero bytes: null. In an arena,
  // memory that a stream freed serves that stream at once, also while it captures, and others once
  // its work is known to be over, unless the arena is pinned; a capturing stream pins it.
  Result<DevicePtr> allocate(const pool::Request& request);
  // Any-stream memory that needs no driver call and no lock which is held across one. Null: there
  // is none, or the request is wrong; allocate() tells.
  DevicePtr allocate_if_ready(Bytes bytes, Bytes alignment);
  // Memory that the stream freed itself and has cached. Asks the driver about the stream, and waits
  // for no lock. Null: as above.
  DevicePtr allocate_if_ready(Bytes bytes, Bytes alignment, driver::StreamHandle stream);
  // out[i] gets `bytes[i]`; all or none. Requires: as many of both.
  Result<void> allocate_many(std::span<const Bytes> bytes, pool::Stream stream,
                             std::span<DevicePtr> out);
  // Work queued before the call on `stream` (and on streams named with record_use) is the last to
  // use the memory.
  Result<void> deallocate(DevicePtr ptr, pool::Stream stream);
  // Into the stream's cache, under the conditions of allocate_if_ready. False: nothing happened.
  bool deallocate_if_ready(DevicePtr ptr, driver::StreamHandle stream);
  // Frees all that are live. The error is that of the first which is not.
  Result<void> deallocate_many(std::span<const DevicePtr> pointers, pool::Stream stream);
  // For finalizers: pushes onto a lock-free list and returns; no lock, no driver call, no wait.
  // Any-stream.
  void deallocate_deferred(DevicePtr ptr) noexcept;
  // `stream` may not be capturing.
  Result<std::unique_ptr<BoundStream>> bind(driver::StreamHandle stream);
  // `ptr` starts an allocation, or invalid_pointer.
  Result<void> record_use(DevicePtr ptr, driver::StreamHandle stream);
  Result<AllocationInfo> query(DevicePtr ptr) const;  // `ptr` may point inside an allocation

  ArenaCalls& arenas() { return arena_calls_; }
  StreamCalls& streams() { return stream_calls_; }
  Limits& limits() { return limits_; }
  Reports& reports() { return reports_; }
  Sharing& sharing() { return sharing_; }
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
  DevicePtr take_pages_if_ready(Bytes bytes, Bytes alignment);
  Freed try_free(const Way& way, const Client& client, DevicePtr ptr);
  Freed try_free(const Way& way, DevicePtr ptr, driver::StreamHandle stream);
  [[gnu::noinline]] void record(report::CallLog& log, const Client& client, DevicePtr begin,
                                Bytes bytes);
  [[gnu::noinline]] Freed free_and_record(report::CallLog& log, const Client& client,
                                          DevicePtr ptr);
  bool is_freed(Freed freed, const pool::Stream& stream, const time::TimelineId* bound);
  void record_due_event(const pool::Stream& stream, const time::TimelineId* bound) noexcept;
  void free_surely(DevicePtr ptr, pool::Stream stream) noexcept;
  // --- context.cpp; `bound`: the timeline of a bound stream, or null ---
  Result<DevicePtr> allocate_slowly(pool::Request request, const time::TimelineId* bound);
  Result<DevicePtr> attempt(const pool::Request& request, const time::TimelineId* bound,
                            report::CallLog::By& by);
  void tell_failure(const pool::Request& request, Error& error, const report::CallLog::By& by);
  Result<void> deallocate_slowly(DevicePtr ptr, const pool::Stream& stream,
                                 const time::TimelineId* bound);

  Parts parts_;
  Device& device_;
  Totals totals_;
  Drawing drawing_;
  Entrance entrance_;
  Shortages shortages_;
  ArenaCalls arena_calls_;
  StreamCalls stream_calls_;
  Limits limits_;
  Reports reports_;
  Sharing sharing_;
};

}  // namespace vpmm::context
