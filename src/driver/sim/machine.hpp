// SPDX-License-Identifier: Apache-2.0
// driver/sim: the simulated computer: devices, contexts, handles, and every driver call, one at a
// time.
//
// SimDriver takes the lock, names the caller (enter), makes the call and runs the farewells.
// Methods have the names and meanings of driver.hpp. machine_*.cpp hold them by subject.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "driver/driver.hpp"
#include "driver/sim/async_pool.hpp"
#include "driver/sim/captures.hpp"
#include "driver/sim/costs.hpp"
#include "driver/sim/hazards.hpp"
#include "driver/sim/memory.hpp"
#include "driver/sim/sharing.hpp"
#include "driver/sim/sim_types.hpp"
#include "driver/sim/timeline.hpp"

namespace vpmm::driver::sim {

class Machine final : private WorkRunner {
 public:
  explicit Machine(const SimOptions& options);
  ~Machine() override;

  // `thread`: the calling thread, never reused. Charges the call and lets due work run.
  void enter(std::uint64_t thread, std::uint64_t cost_ns);
  // Destructors of user objects without a reference; the caller runs them without the lock.
  struct Farewell {
    UserObjectDestructor destroy;
    void* argument;
  };
  std::vector<Farewell> take_farewells() { return std::exchange(farewells_, {}); }
  bool is_initialised() const { return is_initialised_; }

  // --- the simulator's own ---
  CuResult launch(const Kernel& kernel, StreamHandle stream);
  SimTimeline& timeline() { return timeline_; }
  const HazardChecker& checker() const { return checker_; }
  Census census() const;
  void set_used_by_others(DeviceOrdinal device, Bytes bytes) {
    memory_.set_used_by_others(device, bytes);
  }
  void break_context(DeviceOrdinal device, CuResult error);
  void on_allocate(AddressRange range, StreamHandle stream);
  void on_allocate_any_stream(AddressRange range);
  void on_deallocate(AddressRange range, StreamHandle stream);
  void on_deallocate_any_stream(AddressRange range);

  // --- the door ---
#define VPMM_DRIVER_METHOD(name, parameters, arguments) CuResult name parameters;
#include "driver/methods.def"
#undef VPMM_DRIVER_METHOD

 private:
  struct SimContext {
    ContextId id{};
    std::uint32_t retains = 0;
    bool is_alive = false;
    CuResult error = CuResult::success;  // sticky
    Slot legacy = 0;
  };
  struct Thread {
    std::optional<DeviceOrdinal> current;
    CaptureMode capture_mode = CaptureMode::global;
    struct Default {  // its per-thread default stream in one device's context
      ContextId context{};
      Slot slot = 0;
    };
    std::vector<Default> per_thread_streams;  // by device
  };
  enum class Life {
    live,
    destroyed,
    dead
  };  // dead: its context was reset; touching it crashes the real driver
  struct StreamHandleEntry {
    Life life = Life::live;
    Slot slot = 0;
  };
  struct StreamInfo {  // by slot
    DeviceOrdinal device = 0;
    StreamKind kind = StreamKind::blocking;
    StreamId id{};
  };
  struct SimEvent {
    std::uint32_t generation = 0;
    Life life = Life::live;
    DeviceOrdinal device = 0;
    bool is_recorded = false;
    Recording recording;
    CaptureId captured_in{};  // recorded on a capturing stream; 0: not
    VectorClock captured_clock;
  };
  struct PoolEntry {
    std::unique_ptr<AsyncPool> pool;
    bool is_destroyed = false;  // lives on for remaining allocations
  };
  struct PlainAllocation {
    AddressRange range;
    DeviceOrdinal device = 0;
    enum class Kind { of_device, managed };
    Kind kind = Kind::of_device;
  };
  struct SimImport {
    AddressRange mapped;
    AddressRange range;  // within `mapped`: memory of the handle
    DeviceOrdinal device = 0;
    Cookie cookie{};
    std::uint32_t opens = 1;
  };
  struct PinnedMemory {
    Bytes size = 0;
    enum class HostOwner { driver, caller };  // caller: registered
    HostOwner owner = HostOwner::driver;
  };
  struct GraphExec {
    std::shared_ptr<const std::vector<Work>> nodes;
    std::vector<UserObjectHandle> user_objects;
    Recording last_launch;
  };
  struct UserObject {
    void* argument = nullptr;
    UserObjectDestructor destroy = nullptr;
    std::uint32_t references = 0;
  };

  // machine.cpp
  bool can_access(DeviceOrdinal device, DeviceOrdinal peer) const {
    return device != peer && options_.peer_access_supported;
  }
  bool is_device(DeviceOrdinal device) const {
    return device >= 0 && device < options_.device_count;
  }
  SimContext& context(DeviceOrdinal device) { return contexts_[static_cast<std::size_t>(device)]; }
  CuResult device_error(DeviceOrdinal device);  // sticky error, or success
  CuResult caller_error();                      // of the caller's context, if any
  CuResult current_device(DeviceOrdinal& device);
  static ContextHandle context_handle(DeviceOrdinal device);
  std::optional<DeviceOrdinal> find_context(ContextHandle handle) const;
  void make_context(DeviceOrdinal device);
  void destroy_context(DeviceOrdinal device);

  // machine_streams.cpp
  CuResult find_stream(StreamHandle handle, Slot& slot);
  bool is_of_dead_context(StreamHandle handle) const;
  CuResult find_event(EventHandle handle, SimEvent*& event);
  Slot open_stream(DeviceOrdinal device, StreamKind kind);
  Slot per_thread_stream(DeviceOrdinal device);
  const StreamInfo& info(Slot slot) const { return stream_infos_[slot]; }
  void stream_was_synchronised(DeviceOrdinal device);

  // machine_work.cpp
  void run(const Work& work, DeviceOrdinal device) override;
  void queue_self_described(Slot slot, Work work);
  CuResult copy(Work work, StreamHandle stream);
  CuResult copy_and_wait(Work work);
  void queue(Slot slot, Work&& work, std::span<const MemoryAccess> accesses);
  void check_access(const MemoryAccess& access, const Actor& actor, DeviceOrdinal device);
  void note_use(SimMapping& mapping, const Actor& actor);
  bool all_reachable(const Kernel& kernel, DeviceOrdinal device);
  bool reachable(AddressRange range, DeviceOrdinal device);
  Slot annotation_slot(AddressRange range, StreamHandle stream);
  Actor begin_annotation(Slot slot, NameId what);
  template <typename F>
  void for_each_piece(AddressRange range, const Actor& actor, F&& f);

  void mark_allocated(AddressRange range, const Actor& actor);
  void mark_deallocated(AddressRange range, const Actor& actor);

  // machine_memory.cpp
  CuResult vmm_error(DeviceOrdinal device);
  void charge(std::uint64_t ns) { timeline_.advance(ns); }
  void check_unused(const SimMapping& mapping, const Actor& host);
  PoolEntry* find_pool(MemPoolHandle pool);
  PoolEntry* find_pool_of(DevicePtr ptr);
  void free_block(AsyncPool& pool, AddressRange range, const Actor& actor);
  CuResult alloc_small(DeviceOrdinal device, Bytes size, DevicePtr& ptr);
  CuResult alloc_large(DeviceOrdinal device, Bytes size, DevicePtr& ptr);
  AsyncPool* find_small(DevicePtr ptr);
  AddressRange find_allocation(DevicePtr inside);

  // machine_host.cpp
  CuResult unpin(void* host, PinnedMemory::HostOwner owner, CuResult if_missing);
  AddressRange find_pinned(AddressRange inside) const;  // empty: not fully pinned in one piece

  // machine_captures.cpp: each refusal also invalidates the captures that it protects.
  CuResult refuse_unsafe_call();         // calls that may wait for the device
  CuResult refuse_implicit(Slot slot);   // the legacy stream, while a blocking stream captures
  CuResult refuse_host_wait(Slot slot);  // queries and waits for a stream
  CuResult refuse_event_wait(const SimEvent& event);         // queries and waits for an event
  CuResult refuse_while_any_captures(DeviceOrdinal device);  // calls about a whole context
  bool is_implicit(const Capture& capture, Slot slot) const;
  CuResult capture_status(Slot slot, CaptureInfo& result);
  CuResult capture_work(Capture& capture, Slot slot, Work&& work);
  CuResult wait_in_capture(Slot slot, Capture* capture, const SimEvent& event);
  CuResult record_in_capture(Capture& capture, Slot slot, SimEvent& event);
  void drop_reference(UserObjectHandle object);
  void drop_references(std::vector<UserObjectHandle>& objects);
  void bury_finished_execs();

  const SimOptions options_;
  const MappingCosts& costs_;
  bool is_initialised_ = false;
  SimTimeline timeline_;
  HazardChecker checker_;
  SimMemory memory_;
  std::vector<SimContext> contexts_;
  std::uint64_t next_context_id_ = 1;
  std::unordered_map<std::uint64_t, Thread> threads_;
  std::uint64_t thread_ = 0;
  Thread* caller_ = nullptr;

  std::vector<StreamHandleEntry> stream_handles_;
  std::vector<std::size_t> free_stream_handles_;  // taken from the back, as in the real driver
  std::vector<StreamInfo> stream_infos_;
  std::uint64_t next_stream_id_;
  std::uint64_t live_streams_ = 0;
  std::vector<std::unique_ptr<SimEvent>> events_;
  std::vector<std::size_t> free_events_;
  std::uint64_t live_events_ = 0;

  std::map<std::uint64_t, PoolEntry> pools_;             // by handle
  std::vector<std::unique_ptr<AsyncPool>> small_plain_;  // by device: mem_alloc below 1 MiB
  std::uint64_t next_pool_ = 1;
  std::map<DevicePtr, PlainAllocation> plain_;
  std::vector<Exports> exports_;              // by device
  std::map<DevicePtr, SimImport> imports_;    // by the begin of `range`
  std::map<DevicePtr, PinnedMemory> pinned_;  // at most one a page

  CaptureTable captures_;
  std::unordered_map<std::uint64_t, Graph> graphs_;
  std::unordered_map<std::uint64_t, GraphExec> execs_;
  std::vector<GraphExec> dying_execs_;  // destroyed while a launch still runs
  std::unordered_map<std::uint64_t, UserObject> user_objects_;
  std::uint64_t next_graph_object_ = 1;
  std::vector<Farewell> farewells_;
  std::vector<SimMapping*> mappings_;  // scratch
  NameId unmap_name_;
  std::array<NameId, 6> work_names_;  // by Work::Kind; a kernel has its own
};

}  // namespace vpmm::driver::sim
