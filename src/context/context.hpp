// context: one pool on one device, as users see it: routes a request and owns everything the device
// has.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/address.hpp"
#include "base/host_memory.hpp"
#include "base/result.hpp"
#include "context/out_of_memory.hpp"
#include "driver/driver.hpp"
#include "observe/snapshot.hpp"
#include "observe/statistics.hpp"
#include "report/events.hpp"
#include "report/layout.hpp"
#include "settings/config.hpp"

namespace vpmm::context {

struct AllocationInfo {
  DevicePtr begin{};
  Bytes requested = 0;
  Bytes usable = 0;  // what may be used: the request rounded up
  pool::ArenaId arena{};
};

// An allocation that was exported, by a number that no other allocation of the process ever has.
enum class ShareId : std::uint64_t {};

// Memory inside a shared allocation.
struct SharedRange {
  ShareId share{};
  DevicePtr allocation{};  // its begin
  Bytes offset = 0;        // of the memory in it
};

// The chunks behind a shared range, in the order of their addresses.
struct SharedChunks {
  struct Chunk {
    driver::ChunkHandle handle{};
    Bytes size = 0;
  };
  Vector<Chunk> chunks;
  Bytes offset = 0;  // of the range, from the begin of the first
};

// Who keeps shared memory from being used again.
enum class Holder { handle, importer };

// A stream that the pool knows by its object instead of asking the driver at each call: the fastest
// way in. Any thread may use it. It must not outlive its stream or the context, and captures on the
// stream must be announced with capture_begin. After a reset of the CUDA context it is dead:
// requests fail, frees count as any-stream. A reset by others that no other call has met yet is not
// seen by a call that is served from what the stream has cached.
class BoundStream {
 public:
  virtual ~BoundStream() = default;
  Result<DevicePtr> allocate(Bytes bytes, Bytes alignment) {
    const DevicePtr begin = try_allocate(bytes, alignment);
    if (!is_null(begin)) return begin;
    return allocate_beyond(bytes, alignment);
  }
  Result<void> deallocate(DevicePtr ptr) {
    if (try_deallocate(ptr)) return {};
    return deallocate_beyond(ptr);
  }
  // What needs neither driver nor pool: safe while the process ends. Null and false say to call one
  // of the next two.
  virtual DevicePtr try_allocate(Bytes bytes, Bytes alignment) = 0;
  virtual bool try_deallocate(DevicePtr ptr) = 0;
  // What could not be done from the cache, or should not: a free may have been refused to have an
  // event recorded behind it.
  virtual Result<DevicePtr> allocate_beyond(Bytes bytes, Bytes alignment) = 0;
  virtual Result<void> deallocate_beyond(DevicePtr ptr) = 0;
};

// All methods are thread-safe and may be called with any or no CUDA context current; the caller's
// current context is restored. None waits for the GPU unless memory would otherwise run out (and
// synchronise, reset).
class Context {
 public:
  // `driver` must outlive the context. Where the device's CUDA context is active already, address
  // space is reserved at once, and one page is created and given back, so that the first allocation
  // finds everything ready; otherwise nothing is touched before that. No memory stays.
  static Result<std::unique_ptr<Context>> create(driver::Driver& driver,
                                                 driver::DeviceOrdinal device,
                                                 const settings::Config& config);
  virtual ~Context() =
      default;  // waits for the GPU and gives everything back, unless the process is ending

  // Memory that work queued on `stream` after the call may use. Zero bytes: null.
  virtual Result<DevicePtr> allocate(const pool::Request& request) = 0;
  // Any-stream memory, if it can be had without a driver call and without waiting for a lock that
  // is held across one. Null: it cannot, or something is wrong with the request; allocate() knows.
  virtual DevicePtr allocate_if_ready(Bytes bytes, Bytes alignment) = 0;
  // What the stream freed itself and has cached; asks the driver about the stream, and waits for no
  // lock. Null: as above.
  virtual DevicePtr allocate_if_ready(Bytes bytes, Bytes alignment,
                                      driver::StreamHandle stream) = 0;
  // out[i] gets `bytes[i]`; all or none. Requires: as many of both.
  virtual Result<void> allocate_many(std::span<const Bytes> bytes, pool::Stream stream,
                                     std::span<DevicePtr> out) = 0;
  // Work queued before the call on `stream` (and on streams named with record_use) is the last to
  // use the memory.
  virtual Result<void> deallocate(DevicePtr ptr, pool::Stream stream) = 0;
  // Into what the stream has cached; otherwise as allocate_if_ready. False: nothing happened.
  virtual bool deallocate_if_ready(DevicePtr ptr, driver::StreamHandle stream) = 0;
  // All of them but those that are not live, of which the first is the error.
  virtual Result<void> deallocate_many(std::span<const DevicePtr> pointers,
                                       pool::Stream stream) = 0;
  // `stream` may not be capturing.
  virtual Result<std::unique_ptr<BoundStream>> bind(driver::StreamHandle stream) = 0;
  // For finalizers: pushes onto a lock-free list and returns; no lock, no driver call, no wait.
  // Any-stream.
  virtual void deallocate_deferred(DevicePtr ptr) noexcept = 0;
  // `ptr` starts an allocation. invalid_pointer: it does not.
  virtual Result<void> record_use(DevicePtr ptr, driver::StreamHandle stream) = 0;
  // What is queued on `waiting` from now on waits for what is queued on `first`, which may be of
  // any memory.
  virtual Result<void> make_wait(driver::StreamHandle waiting, driver::StreamHandle first) = 0;

  // --- arenas: what is allocated there is freed, used and queried like any other memory ---
  // unsupported: there is no virtual memory pool.
  virtual Result<pool::ArenaId> create_arena(const arena::ArenaOptions& options) = 0;
  // `request` names the arena. What a stream freed in it serves that stream at once, also while it
  // captures; others when its work is known to be over, as long as the arena is not pinned. A
  // capturing stream pins it.
  virtual Result<DevicePtr> allocate_in_arena(const pool::Request& request) = 0;
  // That place, which is free there: what has used it is the caller's business. invalid_pointer: it
  // is not of this arena. invalid_argument: it is not free.
  virtual Result<DevicePtr> allocate_at(pool::ArenaId arena, AddressRange place,
                                        pool::Stream stream) = 0;
  // What it has, and will get, keeps address and memory until it is released.
  virtual Result<void> pin_arena(pool::ArenaId arena) = 0;
  // Memory of the caller's, for an arena that is external: whole grains of 512 bytes, complete, and
  // of no pool. It stays the caller's, who takes it back with take_from_arena or after the arena's
  // release.
  virtual Result<void> add_to_arena(pool::ArenaId arena, AddressRange memory) = 0;
  // Waits for the work that is queued, then takes back memory in which nothing lives and no work is
  // under way, as it was added. Empty: there is none, or the arena is pinned. capture_active: not
  // now.
  virtual Result<AddressRange> take_from_arena(pool::ArenaId arena) = 0;
  // What is idle goes back to the pool, unless it is pinned. Returns how much.
  virtual Result<Bytes> trim_arena(pool::ArenaId arena) = 0;
  virtual Result<Vector<DevicePtr>> live_in_arena(pool::ArenaId arena) const = 0;  // ascending
  // No more requests. What is idle is everybody's, behind all work queued by now if the arena was
  // pinned; the rest when what lives in it is freed.
  virtual Result<void> release_arena(pool::ArenaId arena) = 0;

  // Announce stream captures that the pool cannot see; pairs, may nest and overlap.
  virtual Result<void> capture_begin() = 0;
  virtual Result<void> capture_end() = 0;
  // The graph made from capture `id` will not be launched any more; its memory is free (normally
  // the graph says so itself).
  virtual Result<void> capture_release(driver::CaptureId id) = 0;

  // While held, nothing that the pool does by itself unmaps, releases or waits on the host, unless
  // memory would run out. Pairs, may nest and overlap.
  virtual void defer_cleanup_begin() = 0;
  virtual Result<void> defer_cleanup_end() = 0;

  virtual Result<AllocationInfo> query(
      DevicePtr ptr) const = 0;  // `ptr` may point inside an allocation
  // Gives idle memory back to the driver until at most `bytes_to_keep` are mapped, or no more is
  // idle. Returns bytes given back.
  virtual Result<Bytes> trim(Bytes bytes_to_keep) = 0;
  virtual Result<void> preallocate(Bytes bytes) = 0;  // maps at least this much in all
  virtual void set_capacity(std::optional<Bytes> bytes) = 0;
  virtual std::optional<Bytes> capacity() const = 0;
  // The one that is asked first; empty takes it away.
  virtual void set_out_of_memory_callback(OutOfMemoryCallback callback) = 0;
  // Others, asked in the order in which they were added until one helps. Once one is removed nobody
  // calls it any more.
  virtual std::uint64_t add_out_of_memory_callback(OutOfMemoryCallback callback) = 0;
  virtual Result<void> remove_out_of_memory_callback(std::uint64_t id) = 0;
  // Tells of events of these kinds from now on, in the order in which they happen; returns a number
  // for taking it away. While allocations or frees are asked for, every call takes the pool's lock.
  virtual std::uint64_t add_event_callback(report::EventKinds kinds,
                                           report::EventCallback callback) = 0;
  // Once it has returned, nobody calls it any more. Not to be called by an event callback.
  virtual Result<void> remove_event_callback(std::uint64_t id) = 0;
  // Waits for all work of the device's context, and of other contexts that may use the pool's
  // memory (those of peers, and those whose streams called), and settles what it frees.
  virtual Result<void> synchronize() = 0;
  // The same without settling anything: nothing that streams keep is taken from them.
  // capture_active: not now.
  virtual Result<void> wait_for_work() = 0;
  // Whether a capture is announced or was seen, so that wait_for_work() would not wait now.
  virtual bool is_capturing() = 0;
  // Waits, then resets the device's primary context. Chunks and addresses survive; streams do not.
  // Other threads' calls that name no stream may run beside it. Where the driver refuses, nothing
  // has changed.
  virtual Result<void> reset() = 0;

  // Lets work on `peer`, another GPU, use all memory of the pool, present and future; for the
  // pool's life. The pool's own device has it anyway. From then on a free without a stream waits
  // for the peer's primary context as well. On failure the device may not use any of it, although
  // it might reach some; calling again completes that. Errors: invalid_argument (no such device),
  // unsupported (the devices cannot reach each other's memory, or some of the pool's memory is the
  // driver's stream-ordered pool's), what the driver says.
  virtual Result<void> set_peer_access(driver::DeviceOrdinal peer) = 0;

  // For the pool, within its capacity. free: the largest request that can be served.
  virtual Result<driver::MemInfo> memory_info() = 0;
  virtual observe::Statistics statistics() const = 0;
  virtual void reset_peaks() = 0;
  // Prints a summary of a pool that was used, where VPMM_STATS asks for one; nothing while somebody
  // holds its lock.
  virtual void summarize() const noexcept = 0;
  virtual observe::PoolSnapshot snapshot() const = 0;
  // As at one moment; what streams are served from their caches meanwhile may be in it or not.
  virtual report::Layout layout() const = 0;
  virtual const settings::Config& config() const = 0;  // as in force
  virtual driver::DeviceOrdinal device() const = 0;
  virtual driver::Driver& driver() = 0;
  // First broken invariant of any structure inside, as text; empty when all hold.
  virtual std::string validate() const = 0;

  // Memory for other processes (Note [Shared memory is kept until everybody let go]). share() holds
  // the allocation around `range` with one more handle; lease() with one more importer, and the
  // chunks stay as they are as long as it does. not_shared: it is freed, and no handle holds it.
  // end_lease() ends either, once; ids of the past are ignored.
  virtual Result<SharedRange> share(AddressRange range) = 0;
  virtual Result<SharedChunks> lease(ShareId id, Bytes offset, Bytes size) = 0;
  virtual void end_lease(ShareId id, Holder holder) = 0;

  // Writes what happens to a file that `vpmm replay` reads (docs/reference/recording.md).
  virtual Result<void> start_recording(const std::string& path,
                                       const settings::RecordOptions& options = {}) = 0;
  virtual Result<void> stop_recording() = 0;
  // A text of the program's, between the calls before it and those after; without a recording:
  // nothing.
  virtual void mark(const std::string& text) = 0;
};

}  // namespace vpmm::context
