// SPDX-License-Identifier: Apache-2.0
// driver: the door to CUDA. Every GPU call of the project is a method of this class.
//
// Conventions, for all calls:
// - Names are CUDA's (cuMemMap is mem_map), so a search finds both. Results are CUDA's numbers.
// - Output parameters are references, written only on success.
// - Thread-safe. Where CUDA acts on the calling thread's current context, so do these.
// - Sizes are bytes. Addresses are the device's unless a parameter is a host pointer.
// - No policy: acts as CUDA's call, without retry, logging or own state.
// Implementations: cuda/ (the real one), sim/ (a GPU on the CPU), and decorators over either
// (RecordingDriver, TimingDriver, FaultingDriver). tests/contract holds all to the same behaviour.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "driver/types.hpp"

namespace vpmm::driver {

// Every call, for counting and for planning faults.
enum class Call {
#define VPMM_DRIVER_CALL(name, kind) name,
#include "driver/calls.def"
#undef VPMM_DRIVER_CALL
};
constexpr std::size_t kCallCount = 0
#define VPMM_DRIVER_CALL(name, kind) +1
#include "driver/calls.def"
#undef VPMM_DRIVER_CALL
    ;
const char* to_string(Call call);        // "mem_map"
bool is_memory_call(Call call);          // its time counts as driver time
const char* to_string(CuResult result);  // "CUDA_ERROR_OUT_OF_MEMORY"; unknown numbers:
                                         // "unrecognised CUresult"
// Tells if, after this error, every later call on the context fails too.
bool is_sticky(CuResult result);

// Observer of memory that the pool hands out, as the simulator's hazard checker. `stream`: as
// passed to the pool. Called under the pool's lock, so may not call the pool: on_allocate once the
// memory is the caller's, on_deallocate before another can get it.
class MemoryObserver {
 public:
  virtual ~MemoryObserver() = default;
  virtual void on_allocate(AddressRange range, StreamHandle stream) = 0;
  virtual void on_allocate_any_stream(AddressRange range) = 0;
  virtual void on_deallocate(AddressRange range, StreamHandle stream) = 0;
  // All work queued so far on every stream of the context may be the last use.
  virtual void on_deallocate_any_stream(AddressRange range) = 0;
};

class Driver {
 public:
  Driver() = default;
  virtual ~Driver() = default;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // --- not CUDA calls ---
  virtual const char* name() const = 0;  // "cuda" or "sim"
  virtual bool has(
      Call call) const = 0;            // false: the symbol is missing; a call gives not_supported
  virtual std::uint64_t now_ns() = 0;  // host clock: monotonic, virtual in the simulator
  virtual void sleep_ns(
      std::uint64_t ns) = 0;  // pauses the calling thread by that clock, or somewhat longer
  virtual MemoryObserver* memory_observer() { return nullptr; }

  // --- driver and devices ---
  virtual CuResult init() = 0;                            // may be called many times
  virtual CuResult driver_get_version(int& version) = 0;  // 13000 is 13.0
  virtual CuResult device_get_count(int& count) = 0;
  virtual CuResult device_get_name(DeviceOrdinal device, std::string& name) = 0;
  virtual CuResult device_get_uuid(DeviceOrdinal device, Uuid& uuid) = 0;
  virtual CuResult device_get_attribute(DeviceAttribute attribute, DeviceOrdinal device,
                                        int& value) = 0;
  virtual CuResult device_total_mem(DeviceOrdinal device, Bytes& total) = 0;
  virtual CuResult device_can_access_peer(DeviceOrdinal device, DeviceOrdinal peer, bool& can) = 0;

  // --- contexts ---
  virtual CuResult device_primary_ctx_get_state(DeviceOrdinal device, bool& is_active) = 0;
  virtual CuResult device_primary_ctx_retain(DeviceOrdinal device, ContextHandle& context) = 0;
  virtual CuResult device_primary_ctx_release(DeviceOrdinal device) = 0;
  virtual CuResult device_primary_ctx_reset(DeviceOrdinal device) = 0;
  virtual CuResult ctx_get_current(ContextHandle& context) = 0;
  virtual CuResult ctx_set_current(ContextHandle context) = 0;
  virtual CuResult ctx_get_id(ContextHandle context,
                              ContextId& id) = 0;              // context_is_destroyed after a reset
  virtual CuResult ctx_get_device(DeviceOrdinal& device) = 0;  // of the current context
  virtual CuResult ctx_synchronize() = 0;
  // Completes when all work queued so far on every stream of `context` is done. Illegal while any
  // stream of the context captures. Optional (driver 12.5).
  virtual CuResult ctx_record_event(ContextHandle context, EventHandle event) = 0;

  // --- memory: virtual memory management ---
  virtual CuResult mem_get_info(MemInfo& info) = 0;  // of the current context's device
  virtual CuResult mem_get_allocation_granularity(const ChunkProperties& properties,
                                                  Granularity kind, Bytes& granularity) = 0;
  // `hint` null: anywhere. `alignment` 0: the default.
  virtual CuResult mem_address_reserve(Bytes size, Bytes alignment, DevicePtr hint,
                                       DevicePtr& begin) = 0;
  virtual CuResult mem_address_free(AddressRange reservation) = 0;
  virtual CuResult mem_create(Bytes size, const ChunkProperties& properties,
                              ChunkHandle& chunk) = 0;
  // The memory lives on until its last mapping is gone.
  virtual CuResult mem_release(ChunkHandle chunk) = 0;
  // Maps whole chunks at offset 0: anything else is not_supported on today's drivers.
  virtual CuResult mem_map(AddressRange range, Bytes offset, ChunkHandle chunk) = 0;
  // Unmaps adjacent whole mappings. Part of a mapping: invalid_value.
  virtual CuResult mem_unmap(AddressRange range) = 0;
  virtual CuResult mem_set_access(AddressRange range, std::span<const AccessDescriptor> access) = 0;
  // Exports a chunk as a POSIX file descriptor for an import, over a Unix socket for example. The
  // caller owns `file`, which holds the memory until its close. invalid_value: not created with
  // posix_file_descriptor.
  virtual CuResult mem_export_to_shareable_handle(ChunkHandle chunk, int& file) = 0;
  // `file` stays the caller's and may be closed afterwards. `chunk` is released like an own one;
  // the memory lives until its last handle, mapping and descriptor in any process. The exporting
  // process may import, too.
  virtual CuResult mem_import_from_shareable_handle(int file, ChunkHandle& chunk) = 0;

  // --- memory: plain, stream-ordered, host ---
  virtual CuResult mem_alloc(Bytes size, DevicePtr& ptr) = 0;
  virtual CuResult mem_free(DevicePtr ptr) = 0;
  virtual CuResult mem_pool_create(DeviceOrdinal device, MemPoolHandle& pool) = 0;
  virtual CuResult mem_pool_destroy(MemPoolHandle pool) = 0;
  virtual CuResult mem_pool_set_attribute(MemPoolHandle pool, MemPoolAttribute attribute,
                                          std::uint64_t value) = 0;
  virtual CuResult mem_pool_get_attribute(MemPoolHandle pool, MemPoolAttribute attribute,
                                          std::uint64_t& value) = 0;
  virtual CuResult mem_pool_trim_to(MemPoolHandle pool, Bytes bytes_to_keep) = 0;
  virtual CuResult mem_alloc_from_pool_async(Bytes size, MemPoolHandle pool, StreamHandle stream,
                                             DevicePtr& ptr) = 0;
  virtual CuResult mem_free_async(DevicePtr ptr, StreamHandle stream) = 0;
  virtual CuResult mem_host_alloc(Bytes size, unsigned flags,
                                  void*& host) = 0;  // pinned; flags are CUDA's
  virtual CuResult mem_free_host(void* host) = 0;

  // --- memory: of the host and of host and device together ---
  // Pins memory of the caller, still its owner; flags are CUDA's.
  virtual CuResult mem_host_register(void* host, Bytes size, unsigned flags) = 0;
  virtual CuResult mem_host_unregister(void* host) = 0;  // exactly one registration, by its begin
  // Requires: pinned or registered memory. With unified addressing all of it is mapped, with any
  // flags.
  virtual CuResult mem_host_get_device_pointer(void* host, DevicePtr& ptr) = 0;
  virtual CuResult mem_alloc_managed(Bytes size, unsigned flags,
                                     DevicePtr& ptr) = 0;  // freed with mem_free
  // Allocation around `inside`; for mapped chunks the mapping.
  virtual CuResult mem_get_address_range(DevicePtr inside, AddressRange& range) = 0;
  // cuPointerGetAttribute(DEVICE_ORDINAL): the device of the memory, independent of the current
  // one. invalid_value: unknown memory.
  virtual CuResult pointer_get_device(DevicePtr ptr, DeviceOrdinal& device) = 0;

  // --- memory: of other processes ---
  // `ptr`: begin of a mem_alloc, the only memory that can be shared this way. Freed while open in
  // another process, its contents are undefined there.
  virtual CuResult ipc_get_mem_handle(DevicePtr ptr, IpcMemHandle& handle) = 0;
  // Maps the memory into the current context, with access of its device to the memory's.
  // Repeated openings give the same address; each needs one close. invalid_context: this process
  // made the handle.
  virtual CuResult ipc_open_mem_handle(const IpcMemHandle& handle, DevicePtr& ptr) = 0;
  virtual CuResult ipc_close_mem_handle(DevicePtr ptr) = 0;

  // --- copies and fills; async ones read host memory when the stream gets there ---
  virtual CuResult memcpy_host_to_device(DevicePtr to, const void* from, Bytes size) = 0;
  virtual CuResult memcpy_device_to_host(void* to, DevicePtr from, Bytes size) = 0;
  virtual CuResult memcpy_host_to_device_async(DevicePtr to, const void* from, Bytes size,
                                               StreamHandle stream) = 0;
  virtual CuResult memcpy_device_to_host_async(void* to, DevicePtr from, Bytes size,
                                               StreamHandle stream) = 0;
  virtual CuResult memcpy_device_to_device_async(DevicePtr to, DevicePtr from, Bytes size,
                                                 StreamHandle stream) = 0;
  virtual CuResult memset_d8(DevicePtr to, std::uint8_t value, Bytes size) = 0;
  virtual CuResult memset_d8_async(DevicePtr to, std::uint8_t value, Bytes size,
                                   StreamHandle stream) = 0;

  // --- streams ---
  virtual CuResult stream_create(StreamFlags flags,
                                 StreamHandle& stream) = 0;  // in the current context
  // Queued work still runs. A later stream may get the handle, never the id.
  virtual CuResult stream_destroy(StreamHandle stream) = 0;
  virtual CuResult stream_get_id(StreamHandle stream, StreamId& id) = 0;
  virtual CuResult stream_get_ctx(StreamHandle stream, ContextHandle& context) = 0;
  virtual CuResult stream_is_capturing(StreamHandle stream, CaptureStatus& status) = 0;
  virtual CuResult stream_get_capture_info(StreamHandle stream, CaptureInfo& info) = 0;
  virtual CuResult stream_wait_event(StreamHandle stream, EventHandle event) = 0;
  virtual CuResult stream_query(StreamHandle stream) = 0;
  virtual CuResult stream_synchronize(StreamHandle stream) = 0;
  virtual CuResult stream_begin_capture(StreamHandle stream, CaptureMode mode) = 0;
  virtual CuResult stream_end_capture(StreamHandle stream, GraphHandle& graph) = 0;

  // --- events (always created without timing) ---
  virtual CuResult event_create(EventHandle& event) = 0;  // in the current context
  virtual CuResult event_record(EventHandle event, StreamHandle stream) = 0;
  virtual CuResult event_query(EventHandle event) = 0;  // not_ready while pending
  virtual CuResult event_synchronize(EventHandle event) = 0;
  virtual CuResult event_destroy(EventHandle event) = 0;

  // --- capture and graphs ---
  virtual CuResult thread_exchange_stream_capture_mode(CaptureMode& mode) = 0;  // swaps; in and out
  virtual CuResult graph_instantiate(GraphHandle graph, GraphExecHandle& exec) = 0;
  virtual CuResult graph_launch(GraphExecHandle exec, StreamHandle stream) = 0;
  virtual CuResult graph_destroy(GraphHandle graph) = 0;
  virtual CuResult graph_exec_destroy(GraphExecHandle exec) = 0;
  // The caller owns one reference; `destroy(argument)` runs after the last is gone.
  virtual CuResult user_object_create(void* argument, UserObjectDestructor destroy,
                                      UserObjectHandle& object) = 0;
  virtual CuResult user_object_release(UserObjectHandle object) = 0;
  // Moves the caller's reference to the graph (and to every graph made from it).
  virtual CuResult graph_retain_user_object(GraphHandle graph, UserObjectHandle object) = 0;
};

}  // namespace vpmm::driver
