// SPDX-License-Identifier: Apache-2.0
// property tests: simulated GPUs with a pool each, and a program that uses them by the rules and
// knows what must hold.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "context/context.hpp"
#include "driver/faulting.hpp"
#include "driver/sim/sim_driver.hpp"
#include "fault/host_faults.hpp"
#include "ipc/handle.hpp"
#include "judge/flaw.hpp"
#include "judge/reference.hpp"
#include "property/operation.hpp"
#include "property/script.hpp"
#include "support/baton.hpp"

namespace vpmm::property {

struct Scene {
  driver::sim::SimOptions sim;
  settings::Config config;
  bool frees_when_short =
      false;  // the out-of-memory callback frees an allocation and asks for another try
  bool has_threads = false;  // instead of streams of a thread's own
  std::size_t threads = 4;
  std::size_t streams = 5;       // of each device, that are created
  bool pools_share_gpu = false;  // two of one device
  bool listens = false;          // to every request and free
  // Memory is shared by the exporter of this process with another process, over the socket.
  bool has_importer = false;
};
std::string to_code(const Scene& scene);

// First, middle and last byte: all of a large allocation would fill the memory of the host.
std::array<std::uint8_t*, 3> samples(DevicePtr begin, Bytes bytes);

template <typename T>
std::optional<Error> error_of(const Result<T>& result) {
  return result ? std::nullopt : std::optional(result.error());
}

// Of one program, or of many.
struct Figures {
  std::uint64_t calls = 0;     // of pools
  std::uint64_t misses = 0;    // beyond the stream cache: through the pool's lock
  std::uint64_t faults = 0;    // that struck
  std::uint64_t judged = 0;    // refusals that the reference found right
  std::uint64_t unleased = 0;  // refusals to lease, which were right
  std::uint64_t guarded = 0;   // allocations
  std::uint64_t damaged = 0;   // allocations that pools told to be overrun before they were closed
  std::array<std::uint64_t, kOperationKinds> done{};  // operations that did something
  std::array<std::uint64_t, report::kEventKinds> heard{};
  std::array<std::uint64_t, observe::kLastRecordedKind + 1> recorded{};
};

// Defects that a test plants in a program, to see that they are found.
enum class Defect { none, uses_untold, crashes, hangs };

// How a program is watched.
struct Watch {
  std::size_t operations_per_check = 24;
  Script* script = nullptr;  // what the program does is written there; null: nowhere
  Defect defect = Defect::none;
  judge::Flaw* flaw = nullptr;  // of the pools; null: none
};

struct Program {
  Scene scene;
  std::vector<Operation> operations;
};

// Passes the driver's calls on, and counts them, and those of the pool that took its lock. The
// exporter's thread calls, too.
class Meter final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  std::uint64_t visits() const { return visits_; }
  std::uint64_t calls() const { return calls_; }

 private:
  std::optional<driver::CuResult> before(driver::Call call) override {
    ++calls_;
    if (call == driver::Call::ctx_get_current) ++visits_;
    return std::nullopt;
  }
  std::atomic<std::uint64_t> visits_ = 0;
  std::atomic<std::uint64_t> calls_ = 0;
};

class World {
 public:
  explicit World(const Scene& scene, const Watch& watch = {});
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Looks for broken invariants now and then.
  void run(std::span<const Operation> operations);
  void run(const Operation& operation) { run({&operation, 1}); }
  // Ends captures, frees everything, destroys the pools and looks for what is left.
  void finish();
  // What went wrong first; empty: nothing.
  const std::string& failure() const { return failure_; }
  const Figures& figures() const { return figures_; }
  // Calls of an exit handler: frees do nothing, requests fail.
  void check_after_exit();

 private:
  static constexpr std::size_t kMostAllocations = 64;
  struct Capture {
    std::uint64_t key = 0;
    bool is_announced = false;
    driver::CaptureId id{};
    std::set<std::uint64_t> arenas{};  // keys
  };
  struct Stream {
    driver::StreamHandle handle{};
    std::uint64_t key = 0;  // never used again
    bool is_blocking = false;
    std::optional<Capture> capture;
    std::unique_ptr<context::BoundStream> bound;
    std::uint64_t bound_calls = 0;  // since it was bound
  };
  // Of a margin. `untold`: a reset came, and margins from before it are not compared.
  enum class Damage { none, untold, done };
  // Guarded memory of a pool.
  struct Guarding {
    enum class When { now, deferred, captured };  // of a free
    struct Freed {
      AddressRange range;
      AddressRange pages;
      Damage damage = Damage::none;
      When when = When::now;
      std::uint64_t unseen = 0;  // requests before the free that perhaps took addresses
      bool is_new = true;        // by the operation that runs
    };
    std::optional<AddressRange> addresses;  // from the lowest to the highest so far
    std::vector<AddressRange> made;         // slots, by the operation that runs
    DevicePtr next{};                       // end of the last one
    bool is_first_round = true;             // of all addresses
    std::uint64_t seen = 0;                 // allocations
    std::uint64_t unseen = 0;               // requests that perhaps took addresses
    std::deque<Freed> freed;                // lately
    std::uint64_t least_damaged = 0;        // of all that were freed, but in captures
    std::uint64_t most_damaged = 0;
  };
  // A pool, and streams that use its memory.
  struct Device {
    driver::ContextHandle context{};
    driver::ContextId context_id{};
    std::unique_ptr<context::Context> pool;
    std::vector<Stream> streams;  // 0: legacy, 1: per thread, the rest created
    std::optional<Bytes> capacity;
    bool had_unannounced_capture =
        false;  // since the context began: the pool may not have heard of its end
    std::optional<Stream> other_process;  // the work of all importers; the pool never hears of it
    std::set<std::size_t> peers;
    std::set<std::uint32_t> asleep;  // suspended tags
    bool has_told_tags = false;      // in the script
    std::string recording;           // file; empty: none
    std::optional<std::uint64_t> listener;
    std::uint64_t call_back = 0;  // of CallBack
    bool is_called_back = false;
    Bytes made_by_callbacks = 0;                   // so many in the present call, which were freed
    std::map<std::uint32_t, std::uint64_t> hooks;  // by tag
    std::map<std::uint32_t, std::int64_t> told_asleep;  // before_unmap less after_map
    std::uint64_t told_allocated = 0;                   // events
    std::uint64_t told_freed = 0;
    bool defers_cleanup = false;
    Guarding guarding;
  };
  struct Allocation {
    std::uint64_t number = 0;  // never used again
    std::size_t device = 0;
    DevicePtr ptr{};
    Bytes bytes = 0;
    std::uint64_t home = 0;           // key of the stream that its work is ordered on; perhaps gone
    std::set<std::uint64_t> covered;  // keys of streams whose work the pool itself waits for
    bool is_any_stream = false;       // no stream was named when it was allocated
    std::optional<std::uint8_t> content;
    bool is_shared = false;   // others read it, unordered with home: no more writes
    std::uint32_t tag = 0;    // 0: never suspended
    std::uint64_t arena = 0;  // key
    std::optional<std::uint64_t>
        capture;  // key of the capture it was allocated in, while its graph exists
    bool is_guarded = false;
    Damage damage = Damage::none;
  };
  // A handle that the exporter made. Equal tokens are one to others.
  struct Export {
    ipc::IpcHandle handle;
    bool is_open = true;
  };
  struct Importer {
    AddressRange part;
    ipc::TokenBytes token{};  // with another process
    DevicePtr there{};        // likewise: address of the part
  };
  // An allocation that was exported: alive, freed and held, or of the past.
  struct Shared {
    context::ShareId id{};
    std::uint64_t number = 0;  // of the allocation
    std::size_t device = 0;
    AddressRange range;
    Bytes bytes = 0;  // that were asked for
    std::uint32_t tag = 0;
    std::optional<std::uint8_t> content;  // of every sample, written before importers read it
    enum class Freed { no, deferred, yes };
    Freed freed = Freed::no;
    std::uint64_t handles = 0;
    std::vector<Importer> importers;
    std::vector<Export> exports;                      // with another process: all that ever were
    std::map<DevicePtr, driver::ChunkHandle> chunks;  // as leases told them
    bool is_held() const { return handles != 0 || !importers.empty(); }
  };
  struct Arena {
    std::uint64_t key = 0;
    std::size_t device = 0;
    pool::ArenaId id{};
    std::set<std::uint64_t> users{};  // keys of streams
    bool is_for_graphs = false;
  };
  struct Graph {
    std::uint64_t key = 0;  // of its capture
    std::size_t device = 0;
    driver::GraphHandle graph{};
    driver::GraphExecHandle exec{};
    driver::CaptureId capture{};
    std::set<std::uint64_t> arenas{};  // keys
  };

  void operator()(const Allocate& o);
  void operator()(const AllocateMany& o);
  void operator()(const Write& o);
  void operator()(const Read& o);
  void operator()(const ReadElsewhere& o);
  void operator()(const Move& o);
  void operator()(const Free& o);
  void operator()(const FreeElsewhere& o);
  void operator()(const FreeMany& o);
  void operator()(const FreeAnyStream& o);
  void operator()(const FreeWrongly& o);
  void operator()(const FreeTwice& o);
  void operator()(const Bind& o);
  void operator()(const Spin& o);
  void operator()(const Order& o);
  void operator()(const ReplaceStream& o);
  void operator()(const BeginCapture& o);
  void operator()(const EndCapture& o);
  void operator()(const Launch& o);
  void operator()(const DestroyGraph& o);
  void operator()(const Share& o);
  void operator()(const Lease& o);
  void operator()(const ReadLease& o);
  void operator()(const EndLease& o);
  void operator()(const KillImporter& o);
  void operator()(const SetPeerAccess& o);
  void operator()(const ReadOnPeer& o);
  void operator()(const Trim& o);
  void operator()(const Preallocate& o);
  void operator()(const SetCapacity& o);
  void operator()(const Synchronize& o);
  void operator()(const Pass& o);
  void operator()(const Step& o);
  void operator()(const AllocateTagged& o);
  void operator()(const Suspend& o);
  void operator()(const Resume& o);
  void operator()(const Reset& o);
  void operator()(const Fault& o);
  void operator()(const Record& o);
  void operator()(const Listen& o);
  void operator()(const CallBack& o);
  void operator()(const Hook& o);
  void operator()(const MakeArena& o);
  void operator()(const AllocateInArena& o);
  void operator()(const PinArena& o);
  void operator()(const TrimArena& o);
  void operator()(const ReleaseArena& o);
  void operator()(const AllocateSpecial& o);
  void operator()(const TryAllocate& o);
  void operator()(const TryFree& o);
  void operator()(const OthersUse& o);
  void operator()(const DeferCleanup& o);
  void operator()(const Overrun& o);
  void operator()(const Turn& o);
  void operator()(const Ask& o);
  void operator()(const Fork& o);
  void operator()(const Break& o);
  void operator()(const Exit& o);

  // Runs a call of the pool as the C ABI does: an exception for want of host memory is its error.
  // A fault that was armed strikes in there, where the caller can bear it.
  enum class Bears { nothing, faults };
  template <typename F>
  auto call(Bears bears, F&& calling) -> decltype(calling()) {
    const Strike strike(*this, bears);
    try {
      return calling();
    } catch (const std::bad_alloc&) {
      return no_host_memory();
    }
  }
  class Strike {
   public:
    Strike(World& world, Bears bears);
    ~Strike();
    Strike(const Strike&) = delete;
    Strike& operator=(const Strike&) = delete;

   private:
    World& world_;
    const fault::InsidePool inside_;
    const std::uint64_t visits_;
    const bool is_armed_;
  };
  template <typename... Args>
  void say(fmt::format_string<Args...> text, Args&&... args) {
    if (watch_.script != nullptr) watch_.script->line(text, std::forward<Args>(args)...);
  }
  void launch(const driver::sim::Kernel& kernel, driver::StreamHandle stream);

  // arenas.cpp
  Arena* find_arena(std::uint64_t key);
  bool is_done_with_arenas(const Stream& stream);
  bool may_launch(const Graph& graph);

  // trying.cpp
  void check_prompt(const observe::Statistics& before, const observe::Statistics& after);

  // more.cpp
  bool may_have_failed(const Error& error, const char* what);
  bool call_back(std::size_t device);
  bool call_from_hook(std::size_t device);
  void read_recording(Device& device);
  bool refuses_after_the_end();

  // world.cpp
  std::size_t thread_of(const Operation& operation) const;
  bool act(const Operation& operation);
  void check();  // invariants of pools and simulator
  void fail(std::string what);
  void expect(driver::CuResult result, const char* what);
  template <typename T>
  bool expect(const Result<T>& result, const char* what);
  void open(std::size_t number);
  void close_pool(std::size_t number);
  // Device of the context that is current in the thread that runs.
  std::optional<std::size_t>& current() { return current_[running_]; }
  void make_current(std::size_t device);
  std::size_t gpu_of(std::size_t device) const { return scene_.pools_share_gpu ? 0 : device; }
  // Of the pool among those of its GPU.
  std::size_t seat_of(std::size_t device) const { return scene_.pools_share_gpu ? device : 0; }
  std::size_t number_of(const Device& device) const {
    return static_cast<std::size_t>(&device - devices_.data());
  }
  bool share_gpu(const Device& one, const Device& other) const {
    return gpu_of(number_of(one)) == gpu_of(number_of(other));
  }
  Device& device(std::uint64_t number) { return devices_[number % devices_.size()]; }
  void make_streams(Device& device);
  Stream created_stream(driver::StreamFlags flags);
  context::BoundStream* bound(Stream& stream);  // for this call; null: it goes by the handle
  bool is_usable(const Device& device,
                 const Stream& stream) const;  // ordinary work may be queued on it
  bool is_capturing(const Device& device) const;
  bool is_capturing_anywhere() const;
  Stream* find_stream(Device& device, std::uint64_t key);
  void order(const Stream& first, const Stream& second);

  // memory.cpp
  Allocation* pick(std::uint64_t number) {
    return allocations_.empty() ? nullptr : &allocations_[number % allocations_.size()];
  }
  void forget(const Allocation& allocation);
  bool has_pool() const { return scene_.sim.vmm_supported && scene_.config.pool_enabled; }
  // Whether requests below a page are the driver's to serve: what they got dies with its context.
  bool has_drivers_pool() const;
  Bytes page() const { return scene_.config.page_size.value_or(2 * kMiB); }
  struct Made {
    DevicePtr ptr{};
    Bytes bytes = 0;
    Bytes alignment = 0;      // that was promised
    std::uint64_t arena = 0;  // key; 0: none
  };
  void take_over(std::size_t device, const Stream& stream, bool is_named, const Made& made);
  std::string c_request(std::size_t device, Bytes bytes, Bytes alignment, const Stream* stream);
  Stream* work_stream(const Allocation& allocation);  // where it may be used now; null: nowhere
  void write(Allocation& allocation, const Stream& stream);
  void read(const Allocation& allocation, const Stream& stream);
  // Samples of `whole` inside `part`.
  void read(AddressRange whole, AddressRange part, std::uint8_t content,
            driver::StreamHandle stream);
  bool may_free_on(Allocation& allocation, const Stream& stream, bool is_ordered);
  void record_use(const Allocation& allocation, const Stream& stream);
  Result<void> free_on(Device& device, DevicePtr ptr, Stream& stream);
  bool is_freed_on(const Allocation& allocation, Stream& stream);
  bool must_name_home() const {
    return scene_.config.streams.unnamed_free == settings::UnnamedFree::allocating_stream;
  }
  bool may_free_unnamed(const Allocation& allocation) const;
  void free_unnamed(Allocation& allocation, bool is_deferred);
  bool frees_one();

  // judging.cpp
  static judge::Terms terms_of(const Scene& scene);
  void listen_to_stretches(std::size_t device);
  struct Refused {
    Bytes whole_pages = 0;
    Bytes made_before = 0;  // so many others in the same call, which were freed
  };
  static Vector<AddressRange> kept_ranges(const report::Layout& layout, bool is_beside);
  void judge_refusal(std::size_t device, const Error& error, const Refused& refused);
  void judge_request(std::size_t device, const Error& error, const Refused& refused);  // refused
  bool may_wait(std::size_t device) const;
  judge::Reference& reference(std::size_t device) { return references_[gpu_of(device)]; }
  // Pools number their arenas alike.
  std::uint64_t arena_id(std::size_t device, std::uint64_t id) const {
    return 2 * id + seat_of(device);
  }
  void check_look_up(std::size_t device);
  bool comes_and_goes(std::size_t device, Bytes bytes);  // an allocation; false: it is refused
  void check_reference();

  bool is_covered(const Allocation& allocation) const {
    return allocation.covered.count(allocation.home) != 0;
  }

  // sharing.cpp
  Shared* find_shared(const Allocation& allocation);  // none where no handle was ever made
  bool make_room_for_shared();
  void note_freed(const Allocation& allocation, Shared::Freed how, const Stream* stream);
  bool is_freed(const Shared& shared) const;
  bool is_kept(const Shared& shared) const { return shared.is_held() && is_freed(shared); }
  void read(const Shared& shared, AddressRange part);
  static bool says_not_shared(const Error& error);
  bool is_leased(Shared& shared, AddressRange part, const std::optional<Error>& refusal);
  const Stream& other_process(Device& device);
  void wait_for_other_process(std::size_t device);
  void end_leases(std::size_t one_in);
  bool has_peers() const;
  std::vector<std::size_t> pools_of(std::size_t device) const;  // that its captures concern
  void check_shared();

  // importing.cpp
  Result<context::SharedRange> export_part(Device& device, AddressRange part,
                                           ipc::IpcHandle& handle);
  Result<void> import(const Shared& shared, const Export& of, Importer& importer);
  bool is_open_there(const Shared& shared, const Export& of);
  void read_there(const Shared& shared, const Importer& importer);
  void end_export(Shared& shared, std::uint64_t number);
  void settle_exporter();
  void leave_importer();
  void check_that_nothing_opens();

  // breaking.cpp
  struct NamedCall {
    std::string text;
    std::function<std::optional<Error>()> work;
  };
  std::vector<NamedCall> calls_of(std::size_t device);
  void finish_broken();

  // sleep.cpp
  static constexpr std::uint32_t kBackup = 1;
  static constexpr std::uint32_t kDiscard = 2;
  static std::vector<std::uint32_t> tags_of(std::uint64_t number);
  static std::uint32_t tag_of(std::uint64_t number) {
    return static_cast<std::uint32_t>(number % 3);
  }
  bool is_asleep(const Allocation& allocation) const {
    return devices_[allocation.device].asleep.contains(allocation.tag);
  }
  bool may_be_capturing() const;
  bool may_order_all(std::size_t device) const;
  void order_all(Device& device, const Stream& last);
  bool is_excused(const Error& error, std::size_t device, const Suspend& o) const;
  void check_asleep();

  // guarding.cpp
  bool guards() const { return scene_.config.checks.guard_every != 0 && has_pool(); }
  std::uint64_t unseen(std::size_t device) const;
  bool is_mapped(DevicePtr ptr);
  AddressRange own_pages(AddressRange guarded) const;
  void note_guarded(Allocation& made);
  void look_at_made(std::size_t device);
  void note_freed_guarded(const Allocation& allocation, Guarding::When when);
  bool refuses_guarded(const Operation& operation);
  std::string explained(std::size_t device, AddressRange freed);
  void look_at_guarded();
  void forget_margins(std::size_t device);
  void check_unmapped(std::size_t device);
  void check_damage();
  void check_hazards();

  // life.cpp
  void end_capture(std::size_t device, Stream& stream, bool is_kept);
  void destroy(const Graph& graph, bool frees_first);
  void destroy_graphs(std::size_t device);
  void settle_captures(std::size_t device);
  void notice_reset(std::size_t number, bool keeps_contents);

  Scene scene_;
  const Watch watch_;
  driver::sim::SimDriver sim_;
  fault::ExemptDriver exempt_{sim_};
  driver::FaultingDriver faulting_{exempt_};
  Meter meter_{faulting_};
  judge::Flaw no_flaw_;
  judge::Flaw& flaw_;
  std::optional<Fault> armed_;
  bool strikes_ = false;     // a fault is armed in the call that runs
  bool struck_ = false;      // the last call met a fault
  bool had_faults_ = false;  // some call did: what the driver refused to take back may be left
  bool is_broken_ = false;   // a context
  bool acted_ = false;       // the operation did something
  std::size_t run_ = 0;      // operations
  Figures figures_;
  std::uint64_t next_number_ = 1;
  std::vector<Device> devices_;
  std::deque<judge::Reference> references_;          // by GPU
  std::vector<std::optional<std::size_t>> current_;  // by thread
  std::vector<Allocation> allocations_;
  std::deque<std::pair<std::size_t, DevicePtr>>
      freed_;  // lately, by device; perhaps somebody else's by now
  std::vector<Graph> graphs_;
  std::vector<Arena> arenas_;
  std::vector<Shared> shared_;
  std::set<context::ShareId> share_ids_;   // that were ever given
  std::optional<ipc::Identity> exporter_;  // since the first export
  std::uint64_t next_key_ = 1;
  std::uint8_t next_content_ = 1;
  std::uint64_t misread_ = 0;        // by simulated kernels
  std::set<std::uint64_t> planted_;  // numbers of hazards of overruns
  std::string failure_;
  std::size_t turn_ = 0;     // thread of the operations
  std::size_t running_ = 0;  // thread that runs
  std::optional<test::Baton> baton_;
};

// Runs all of it; what went wrong first, or empty.
std::string failure_of(const Scene& scene, const std::vector<Operation>& operations);
std::string failure_of(const Program& program, const Watch& watch);

}  // namespace vpmm::property
