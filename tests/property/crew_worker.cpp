// SPDX-License-Identifier: Apache-2.0
// property tests: what one thread does with the pool of its device, and all of them at once.
#include <array>
#include <atomic>
#include <latch>
#include <thread>

#include "driver/context_scope.hpp"
#include "property/crew.hpp"
#include "support/pool_observer.hpp"

namespace vpmm::property {

using driver::sim::MemoryAccess;

class Crew::Worker {
 public:
  Worker(Crew& crew, Device& device, std::uint64_t seed)
      : crew_(crew), device_(device), random_(seed), tag_(next_tag.fetch_add(1) + 1) {
    crew_.expect(pool().suspension().make_suspendable(tag_, {true, seed % 3 == 0}).ok(),
                 "make a tag suspendable");
    crew_.expect(sim().ctx_set_current(device_.context) == CuResult::success, "set current");
    const std::vector<StreamHandle>& shared = device.shared_streams;
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      streams_[i] = shared.empty() ? crew_.new_stream() : shared[i % shared.size()];
      if (below(2) == 0) continue;
      auto bound = pool().bind(streams_[i]);
      crew_.expect(bound.ok(), "bind");
      if (bound) bound_[i] = std::move(bound).value();
    }
  }
  void run(int operations) {
    for (int i = 0; i < operations && !crew_.has_failed_; ++i) step();
    for (const Loan& loan : mine_) device_.exchange.give(loan);
  }

 private:
  driver::sim::SimDriver& sim() { return crew_.sim_; }
  context::Context& pool() { return *device_.pool; }
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  StreamHandle stream() { return streams_[below(streams_.size())]; }

  void step() {
    const std::uint64_t what = below(108);
    if (what < 36) return allocate();
    if (what < 40) return allocate_many();
    if (what < 56) return free_mine();
    if (what < 60) return free_many();
    if (what < 70) return hand_over();
    if (what < 90) return free_taken();
    if (what < 94) return capture();
    if (what == 107 || what == 103) return sleep();
    if (what >= 104) return share();
    if (what >= 100) return end_lease();
    rare(what);
  }

  // The object of one of our streams, if it has one; not at every call.
  context::BoundStream* bound(StreamHandle stream) {
    for (std::size_t i = 0; i < streams_.size(); ++i)
      if (streams_[i] == stream && below(4) != 0) return bound_[i].get();
    return nullptr;
  }
  Bytes size() {
    const std::uint64_t what = below(6);
    if (what < 2) return 1 + below(kMiB);
    if (what == 2) return 1 + below(4 * kKiB);
    return (1 + below(24)) * kMiB;
  }

  void allocate() {
    if (mine_.size() >= 12) return;
    Watchdog::doing("allocate");
    const Bytes bytes = size();
    const bool is_named = below(6) != 0;
    const StreamHandle home = stream();
    context::BoundStream* const by_object = is_named ? bound(home) : nullptr;
    const auto result =
        by_object != nullptr
            ? by_object->allocate(bytes, 0)
            : pool().allocate({bytes, 0, is_named ? pool::Stream(home) : std::nullopt});
    if (!result)
      return crew_.expect(result.error().code == ErrorCode::out_of_memory,
                          result.error().message.c_str());
    take_over(result.value(), bytes, home, is_named);
  }

  void allocate_many() {
    if (mine_.size() >= 12) return;
    Watchdog::doing("allocate_many");
    const std::array<Bytes, 3> sizes = {size(), size(), size()};
    std::array<DevicePtr, 3> made{};
    const StreamHandle home = stream();
    const auto result = pool().allocate_many(sizes, home, made);
    if (!result)
      return crew_.expect(result.error().code == ErrorCode::out_of_memory,
                          result.error().message.c_str());
    for (std::size_t i = 0; i < sizes.size(); ++i) take_over(made[i], sizes[i], home, true);
  }

  void take_over(DevicePtr ptr, Bytes bytes, StreamHandle home, bool has_tenant) {
    crew_.took({ptr, bytes});
    mine_.push_back({ptr, bytes, home, static_cast<std::uint8_t>(1 + below(255)), has_tenant});
    write(mine_.back());
  }

  void write(const Loan& loan) {
    driver::sim::Kernel kernel;
    kernel.name = "writer";
    kernel.duration_ns = 3000;
    kernel.accesses = {{{loan.ptr, loan.bytes}, MemoryAccess::Kind::write}};
    kernel.body = [loan] {
      auto* first = reinterpret_cast<std::uint8_t*>(to_integer(loan.ptr));
      first[0] = first[loan.bytes - 1] = loan.content;
    };
    const CuResult launched = sim().launch(kernel, loan.home);
    crew_.expect(launched == CuResult::success, driver::to_string(launched));
  }

  void read(const Loan& loan) {
    driver::sim::Kernel kernel;
    kernel.name = "reader";
    kernel.accesses = {{{loan.ptr, loan.bytes}, MemoryAccess::Kind::read}};
    kernel.body = [loan, this_crew = &crew_] {
      const auto* first = reinterpret_cast<const std::uint8_t*>(to_integer(loan.ptr));
      if (first[0] != loan.content || first[loan.bytes - 1] != loan.content) ++this_crew->misread_;
    };
    const CuResult launched = sim().launch(kernel, loan.home);
    crew_.expect(launched == CuResult::success, driver::to_string(launched));
  }

  std::optional<Loan> draw_mine() {
    if (mine_.empty()) return std::nullopt;
    std::swap(mine_[below(mine_.size())], mine_.back());
    const Loan loan = mine_.back();
    mine_.pop_back();
    return loan;
  }

  void free_mine() {
    const auto loan = draw_mine();
    if (!loan) return;
    Watchdog::doing("free what the thread allocated");
    read(*loan);
    crew_.live_.remove(loan->ptr);
    context::BoundStream* const by_object = bound(loan->home);
    freed(by_object != nullptr ? by_object->deallocate(loan->ptr)
                               : pool().deallocate(loan->ptr, loan->home));
  }

  // On one stream, which waits for the others.
  void free_many() {
    Watchdog::doing("free many");
    const StreamHandle last = stream();
    std::array<DevicePtr, 3> pointers{};
    for (DevicePtr& ptr : pointers) {
      const auto loan = draw_mine();
      if (!loan) continue;
      read(*loan);
      if (loan->home != last) order(loan->home, last);
      ptr = loan->ptr;
      crew_.live_.remove(ptr);
    }
    freed(pool().deallocate_many(pointers, last));
  }

  void hand_over() {
    if (const auto loan = draw_mine()) device_.exchange.give(*loan);
  }

  // Whoever comes to it frees the memory, and anybody ends the lease, in any order.
  void share() {
    const auto loan = draw_mine();
    if (!loan) return;
    Watchdog::doing("share");
    const auto shared = pool().sharing().share({loan->ptr, loan->bytes});
    if (!shared)
      crew_.expect(shared.error().code == ErrorCode::unsupported, shared.error().message.c_str());
    if (shared) lease(*loan, shared.value().share);
    if (below(2) == 0) return device_.exchange.give(*loan);
    mine_.push_back(*loan);
  }

  void lease(const Loan& loan, context::ShareId id) {
    const auto leased = pool().sharing().lease(id, 0, loan.bytes);
    crew_.expect(leased.ok(), "a lease of live memory");
    if (!leased) return;
    const auto ended = below(2) == 0 ? context::Holder::handle : context::Holder::importer;
    const auto kept =
        ended == context::Holder::handle ? context::Holder::importer : context::Holder::handle;
    pool().sharing().end_lease(id, ended);
    device_.leases.give({loan, id, kept, leased.value().chunks.front().handle});
  }

  void end_lease() {
    auto lease = device_.leases.take();
    if (!lease) return;
    Watchdog::doing("end a lease");
    const StreamHandle own = stream();
    if (lease->of.home != own) order(lease->of.home, own);
    lease->of.home = own;
    read(lease->of);
    wait(own);  // an importer is done with the memory when it says so
    if (lease->kept == context::Holder::handle) {
      const auto leased = pool().sharing().lease(lease->id, 0, lease->of.bytes);
      crew_.expect(leased && leased.value().chunks.front().handle == lease->first_chunk,
                   "another chunk than before");
      if (leased) pool().sharing().end_lease(lease->id, context::Holder::importer);
    }
    pool().sharing().end_lease(lease->id, lease->kept);
  }

  void free_taken() {
    const auto loan = device_.exchange.take();
    if (!loan) return;
    Watchdog::doing("free what another thread allocated");
    read(*loan);
    crew_.live_.remove(loan->ptr);
    const StreamHandle own = stream();
    switch (below(loan->has_tenant ? 5 : 4)) {
      case 0: return freed(pool().deallocate(loan->ptr, loan->home));
      case 1: return freed(pool().deallocate(loan->ptr, std::nullopt));
      case 2: return pool().deallocate_deferred(loan->ptr);
      case 3: order(loan->home, own); break;
      default: break;  // the pool waits for the stream of the allocation by itself
    }
    freed(pool().deallocate(loan->ptr, own));
  }

  // Memory of a tag of its own: others neither use it nor suspend it.
  void sleep() {
    Watchdog::doing("suspend and resume");
    std::vector<Loan> asleep;
    for (std::uint64_t i = 0; i <= below(3); ++i) {
      const Bytes bytes = below(2) == 0 ? 1 + below(256 * kKiB) : (1 + below(6)) * kMiB;
      pool::Request request{bytes, 0, stream()};
      request.tag = tag_;
      const auto made = pool().allocate(request);
      if (!made) {
        crew_.expect(made.error().code == ErrorCode::out_of_memory, made.error().message.c_str());
        break;
      }
      take_over(made.value(), bytes, *request.stream, true);
      asleep.push_back(mine_.back());
      mine_.pop_back();
    }
    context::SuspendHow how;
    how.to_driver = below(2) == 0;
    if (below(3) == 0 && !asleep.empty()) {
      how.after = asleep.front().home;
      for (const Loan& loan : asleep)
        if (loan.home != *how.after) order(loan.home, *how.after);
    }
    const auto suspended = pool().suspension().suspend(tag_, how);
    if (!suspended)
      crew_.expect(suspended.error().code == ErrorCode::capture_active,
                   suspended.error().message.c_str());
    const auto free_one = [&](const Loan& loan) {
      crew_.live_.remove(loan.ptr);
      freed(pool().deallocate(loan.ptr, loan.home));
    };
    if (suspended && asleep.size() > 1) {
      free_one(asleep.back());
      asleep.pop_back();
    }
    if (suspended && below(2) == 0) allocate();
    Result<void> resumed;
    for (int tries = 0; tries < 50; ++tries) {
      resumed = pool().suspension().resume(tag_, {});
      if (resumed) break;
      crew_.expect(resumed.error().code == ErrorCode::capture_active ||
                       resumed.error().code == ErrorCode::out_of_memory,
                   resumed.error().message.c_str());
      std::this_thread::yield();
    }
    for (const Loan& loan : asleep) {
      if (resumed) read(loan);
      free_one(loan);
    }
    // It has nothing left to resume, but a capture may still be in the way.
    while (!resumed && !crew_.has_failed_) {
      resumed = pool().suspension().resume(tag_, {});
      if (!resumed)
        crew_.expect(resumed.error().code == ErrorCode::capture_active,
                     resumed.error().message.c_str());
    }
  }

  // Others may be capturing.
  void wait(StreamHandle stream) {
    const driver::RelaxedCaptureScope relaxed(sim());
    crew_.expect(sim().stream_synchronize(stream) == CuResult::success, "synchronize a stream");
  }

  void freed(const Result<void>& result) {
    crew_.expect(result.ok(), result ? "" : result.error().message.c_str());
  }

  void order(StreamHandle first, StreamHandle second) {
    driver::EventHandle event{};
    crew_.expect(sim().event_create(event) == CuResult::success, "event");
    crew_.expect(sim().event_record(event, first) == CuResult::success, "record");
    crew_.expect(sim().stream_wait_event(second, event) == CuResult::success, "wait");
    crew_.expect(sim().event_destroy(event) == CuResult::success, "event");
  }

  // On a stream of its own, on which nobody else queues work; announced, since other threads go on.
  void capture() {
    Watchdog::doing("capture");
    const StreamHandle captured = crew_.new_stream();
    crew_.expect(pool().streams().capture_begin().ok(), "capture_begin");
    const auto mode = static_cast<driver::CaptureMode>(below(3));
    crew_.expect(sim().stream_begin_capture(captured, mode) == CuResult::success,
                 "begin a capture");
    const Bytes bytes = (2 + below(6)) * kMiB;
    const auto inside = pool().allocate({bytes, 0, captured});
    if (inside) {
      crew_.took({inside.value(), bytes});
      write({inside.value(), bytes, captured, 1, false});
      crew_.live_.remove(inside.value());
    }
    if (inside && below(2) == 0)
      freed(pool().deallocate(inside.value(), captured));
    else if (inside)
      pool().deallocate_deferred(inside.value());
    driver::GraphHandle graph{};
    crew_.expect(sim().stream_end_capture(captured, graph) == CuResult::success,
                 "a capture was broken");
    crew_.expect(pool().streams().capture_end().ok(), "capture_end");
    driver::GraphExecHandle exec{};
    if (sim().graph_instantiate(graph, exec) != CuResult::success) return;
    if (sim().graph_launch(exec, stream()) == CuResult::success) sim().graph_exec_destroy(exec);
    sim().graph_destroy(graph);
    sim().stream_destroy(captured);
  }

  void rare(std::uint64_t what) {
    Watchdog::doing("trim, validate, synchronize, ask or compute");
    if (what == 94) {
      crew_.expect(pool().limits().trim(below(64) * kMiB).ok(), "trim");
    } else if (what == 95) {
      const std::string broken = pool().reports().validate();
      crew_.expect(broken.empty(), broken.c_str());
    } else if (what == 96) {
      const auto result = pool().streams().synchronize();
      crew_.expect(result || result.error().code == ErrorCode::capture_active, "synchronize");
    } else if (what == 97) {
      crew_.expect(pool().limits().memory_info().ok(), "memory_info");
    } else {
      sim().advance_host_ns(below(100'000));
    }
  }

  Crew& crew_;
  Device& device_;
  std::mt19937_64 random_;
  static inline std::atomic<std::uint32_t> next_tag{1000};
  const std::uint32_t tag_;
  std::array<StreamHandle, 3> streams_{};
  std::array<std::unique_ptr<context::BoundStream>, 3> bound_;
  std::vector<Loan> mine_;
};

void Crew::work(std::uint64_t seed, std::size_t threads, int steps) {
  std::atomic<std::uint64_t> busy{threads};
  std::vector<std::thread> observers;
  for (Device& device : devices_)
    observers.emplace_back([&, dice = seed ^ observers.size()] {
      const Watchdog::Watched watched(watchdog_, "an observer");
      expect(sim_.ctx_set_current(device.context) == CuResult::success, "set current");
      const std::string wrong = test::PoolObserver(*device.pool, dice).run(busy);
      expect(wrong.empty(), wrong.c_str());
    });
  std::vector<std::thread> workers;
  std::latch all_there(static_cast<std::ptrdiff_t>(threads));
  for (std::size_t i = 0; i < threads; ++i)
    workers.emplace_back([&, i] {
      const Watchdog::Watched watched(watchdog_, "thread " + std::to_string(i));
      Worker worker(*this, devices_[i % devices_.size()], seed + i);
      all_there.arrive_and_wait();
      worker.run(steps);
      --busy;
    });
  for (std::thread& worker : workers) worker.join();
  for (std::thread& observer : observers) observer.join();
}

}  // namespace vpmm::property
