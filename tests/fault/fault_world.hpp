// SPDX-License-Identifier: Apache-2.0
// fault tests: a pool whose driver fails on demand, and a user who knows what may not be lost.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "context/context.hpp"
#include "driver/faulting.hpp"
#include "driver/recording.hpp"
#include "driver/sim/sim_driver.hpp"
#include "fault/host_faults.hpp"

namespace vpmm::fault {

// The pool's calls go through `recorder`, then `faulting`, to the simulator; the user's go to the
// simulator directly. HostFaults strike inside the pool's calls only. Every operation may fail
// while faults strike; what it did or did not do must be clear from its result.
class FaultWorld {
 public:
  FaultWorld(const driver::sim::SimOptions& options, const settings::Config& config);
  ~FaultWorld();
  FaultWorld(const FaultWorld&) = delete;
  FaultWorld& operator=(const FaultWorld&) = delete;

  driver::FaultingDriver& faulting() { return faulting_; }
  driver::RecordingDriver& recorder() { return recorder_; }
  driver::sim::SimDriver& sim() { return sim_; }
  context::Context* pool() { return pool_.get(); }

  // --- what scenarios are made of ---
  void open();  // creates the pool; others do nothing without one
  driver::StreamHandle stream(std::size_t number) const { return streams_[number]; }
  std::size_t allocate(Bytes bytes,
                       pool::Stream stream);  // a number for the calls below; it may have failed
  std::size_t allocate(const pool::Request& request);
  DevicePtr address(std::size_t number) const {
    return allocations_[number]->ptr;
  }  // of one that did not fail
  std::size_t allocate_bound(
      Bytes bytes, std::size_t stream);  // by an object that knows the stream from here on
  // By a number; it may have failed.
  std::size_t make_arena(const arena::ArenaOptions& options = {});
  std::size_t allocate_in(std::size_t arena, Bytes bytes, pool::Stream stream);
  // `begin`: of what was freed there, and whose work is over; null: nothing is done.
  std::size_t allocate_again(std::size_t arena, DevicePtr begin, Bytes bytes, pool::Stream stream);
  void trim_arena(std::size_t arena);
  void release_arena(std::size_t arena);
  void suspend_arena(std::size_t arena, const context::SuspendHow& how);
  void resume_arena(std::size_t arena, const context::ResumeHow& how);
  // All or nothing, with hooks: a tag whose call fails is as it was, and so are its hooks.
  void make_suspendable(std::uint32_t tag, context::TagOptions options);
  void prepare_tag(std::uint32_t tag);
  void suspend_tag(std::uint32_t tag, const context::SuspendHow& how);
  void resume_tag(std::uint32_t tag, const context::ResumeHow& how);
  // Memory of the user's, for an arena that is external. What comes back is freed at once.
  void add_memory(std::size_t arena, Bytes bytes);
  void take_memory(std::size_t arena);
  DevicePtr address_of(std::size_t number) const {  // null: it failed
    return allocations_[number] ? allocations_[number]->ptr : DevicePtr{};
  }
  void deallocate(std::size_t number, pool::Stream stream);
  void deallocate_bound(std::size_t number, std::size_t stream);
  void deallocate_many(const std::vector<std::size_t>& numbers, pool::Stream stream);
  void deallocate_deferred(std::size_t number);
  void record_use(std::size_t number, driver::StreamHandle stream);
  void set_peer_access();                  // for device 1, whose context the user makes active
  void write_on_peer(std::size_t number);  // if access was given
  // Another process: a number for the calls below; it has the handle. None of these calls the
  // driver, so none may fail.
  std::size_t share(std::size_t number);
  void lease(std::size_t share);
  void end_lease(std::size_t share, context::Holder holder);
  void trim(Bytes bytes_to_keep);
  void preallocate(Bytes bytes);
  void synchronize();
  void look();    // figures, the dumps that the C ABI makes of a snapshot, and the layout
  void listen();  // to all events, from here on
  void record();  // from here on, into nowhere
  void reset();
  void reset_by_others();
  enum class Announced { yes, no };
  void capture(driver::StreamHandle stream,
               Announced announced);  // memory is freed, divided and joined; a graph of it runs
  void capture_in(std::size_t arena,
                  driver::StreamHandle stream);  // the same in an arena, not announced
  void pass(std::uint64_t ns) { sim_.advance_host_ns(ns); }

  // --- what must hold ---
  // After a scenario, the faults gone: nothing live is lost, the pool works or says clearly that it
  // is poisoned.
  void check_aftermath();
  // Destroys the pool. What may be left is what the driver refused to take back.
  enum class Left { nothing, what_was_refused };
  void close(Left allowed);
  bool is_poisoned() const { return is_poisoned_; }
  const std::string& failure() const { return failure_; }

 private:
  struct Live {
    DevicePtr ptr{};
    Bytes bytes = 0;
    std::uint8_t content = 0;  // 0: undefined
  };
  struct Shared {
    context::ShareId id{};
    Live of;
    Bytes usable = 0;
    driver::ChunkHandle first_chunk{};  // as leases tell it
    std::uint64_t handles = 0;
    std::uint64_t importers = 0;
    bool is_held() const { return handles + importers != 0; }
  };
  void fail(std::string what);
  void must(driver::CuResult result, const char* what);  // of the user's own calls
  // Whether an operation succeeded; notes poison, and checks the pool.
  template <typename T>
  bool done(const Result<T>& result, const char* what);
  // Runs a call of the pool as the C ABI does: an exception for want of host memory is its error.
  template <typename F>
  static auto within(F&& call) -> decltype(call()) {
    const InsidePool inside;
    try {
      return call();
    } catch (const std::bad_alloc&) {
      return no_host_memory();
    }
  }
  void check_pool(const char* what);
  std::size_t take_over(const Result<DevicePtr>& result, Bytes bytes, driver::StreamHandle stream);
  context::BoundStream* bound(std::size_t stream);
  void note_free(std::size_t number, const Result<void>& result);
  void write(Live& live, driver::StreamHandle stream);
  void check_contents();
  void check_contents(const Live& live);
  void resume_all();
  void check_tag(std::uint32_t tag, bool is_asleep, const char* what);
  void check_host_copies();
  void forget_discarded();
  bool is_suspended(const Live& live);
  void check_leases(const char* what);
  void end_leases();
  void check_poison();
  void check_use();
  void enter();         // retains the context, makes it current, creates streams
  void forget_small();  // where the driver serves it
  void run_graph(driver::StreamHandle stream, const std::vector<std::size_t>& inside);

  driver::sim::SimDriver sim_;
  ExemptDriver exempt_{sim_};
  driver::FaultingDriver faulting_{exempt_};
  driver::RecordingDriver recorder_{faulting_};
  settings::Config config_;
  driver::ContextHandle context_{};
  driver::ContextId context_id_{};
  std::vector<driver::StreamHandle> streams_;
  std::unique_ptr<context::Context> pool_;
  std::vector<std::unique_ptr<context::BoundStream>> bound_;  // by stream
  std::vector<std::optional<Live>> allocations_;
  std::vector<pool::ArenaId> arenas_;
  std::map<std::uint32_t, int> told_asleep_;  // by tag: hooks before a suspend less those after it
  std::vector<AddressRange> given_;           // to arenas
  std::vector<Shared> shared_;
  std::optional<driver::StreamHandle> peer_stream_;
  bool has_peer_access_ = false;
  std::uint64_t deferred_ = 0;
  std::uint64_t events_ = 0;  // heard
  std::uint8_t next_content_ = 1;
  bool is_poisoned_ = false;
  std::string failure_;
};

}  // namespace vpmm::fault
