// SPDX-License-Identifier: Apache-2.0
// property tests: threads that share a pool of each device, and what must hold while they do and in
// the end.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "property/world.hpp"
#include "support/live_ranges.hpp"
#include "support/watchdog.hpp"

namespace vpmm::property {

using driver::CuResult;
using driver::StreamHandle;
using test::Watchdog;

class Crew {
 public:
  // Whether each thread has streams of its own, or all threads of a device have the same.
  enum class Streams { own, shared };

  Crew(const Scene& scene, Streams streams, const std::string& run)
      : watchdog_(run),
        sim_(scene.sim),
        devices_(static_cast<std::size_t>(scene.sim.device_count)),
        page_(*scene.config.page_size),
        streams_(streams) {
    const Watchdog::Watched main(watchdog_, "the begin");
    expect(sim_.init() == CuResult::success, "init");
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      enter(i);
      auto created = context::Context::create(sim_, static_cast<int>(i), scene.config);
      expect(created.ok(), "create");
      if (created) devices_[i].pool = std::move(created).value();
    }
  }

  // In phases, between which everybody pauses and a device may be reset.
  void run(std::uint64_t seed, std::size_t threads, int steps, int phases) {
    std::mt19937_64 random(seed);
    for (int phase = 0; phase < phases; ++phase) {
      for (std::size_t i = 0; i < devices_.size() && streams_ == Streams::shared; ++i)
        make_shared_streams(i, random());
      work(seed * 1000 + static_cast<std::uint64_t>(phase) * 100, threads, steps / phases);
      for (std::size_t i = 0; i < devices_.size() && phase + 1 < phases; ++i)
        if (random() % 3 != 0) reset(i, random() % 2 == 0);
    }
    const Watchdog::Watched main(watchdog_, "the end");
    finish();
  }
  std::string failure() {
    const MutexLock lock(mutex_);
    return failure_;
  }

 private:
  struct Loan {
    DevicePtr ptr{};
    Bytes bytes = 0;
    StreamHandle home{};  // all its work is queued there
    std::uint8_t content = 0;
    bool has_tenant = false;  // it was allocated for `home`
  };

  // Another process has it, whether it is freed or not.
  struct Lease {
    Loan of;
    context::ShareId id{};
    context::Holder kept{};
    driver::ChunkHandle first_chunk{};
  };

  // What one thread gives to whichever takes it next.
  template <typename T>
  class Exchange {
   public:
    void give(const T& given) VPMM_EXCLUDES(mutex_) {
      const MutexLock lock(mutex_);
      given_.push_back(given);
    }
    std::optional<T> take() VPMM_EXCLUDES(mutex_) {
      const MutexLock lock(mutex_);
      if (given_.empty()) return std::nullopt;
      const T taken = given_.front();
      given_.pop_front();
      return taken;
    }
    std::deque<T> take_all() VPMM_EXCLUDES(mutex_) {
      const MutexLock lock(mutex_);
      return std::exchange(given_, {});
    }

   private:
    Mutex mutex_;
    std::deque<T> given_ VPMM_GUARDED_BY(mutex_);
  };

  class Worker;
  struct Device {
    driver::ContextHandle context{};
    std::unique_ptr<context::Context> pool;
    Exchange<Loan> exchange;
    Exchange<Lease> leases;
    std::vector<StreamHandle> shared_streams;  // of this phase
  };

  void expect(bool holds, const char* what) {
    if (holds) return;
    has_failed_ = true;
    const MutexLock lock(mutex_);
    if (failure_.empty()) failure_ = what;
  }

  void took(AddressRange range) {
    const std::string overlap = live_.add(range);
    expect(overlap.empty(), overlap.c_str());
  }

  void enter(std::size_t number) {
    Device& at = devices_[number];
    expect(
        sim_.device_primary_ctx_retain(static_cast<int>(number), at.context) == CuResult::success,
        "retain");
    expect(sim_.ctx_set_current(at.context) == CuResult::success, "set current");
  }

  StreamHandle new_stream() {
    StreamHandle made{};
    expect(sim_.stream_create(driver::StreamFlags::non_blocking, made) == CuResult::success,
           "stream");
    return made;
  }

  // One to three.
  void make_shared_streams(std::size_t number, std::uint64_t dice) {
    expect(sim_.ctx_set_current(devices_[number].context) == CuResult::success, "set current");
    devices_[number].shared_streams.clear();
    for (std::uint64_t i = 0; i <= dice % 3; ++i)
      devices_[number].shared_streams.push_back(new_stream());
  }

  // crew_worker.cpp: every thread in one of its own, until each has taken its steps.
  void work(std::uint64_t seed, std::size_t threads, int steps);

  // What is lent out lives on with its contents, on a new stream; but not what the driver's own
  // pool gave.
  void reset(std::size_t number, bool is_foreign) {
    const Watchdog::Watched main(watchdog_, "a reset");
    Device& at = devices_[number];
    expect(sim_.ctx_set_current(at.context) == CuResult::success, "set current");
    if (is_foreign) {
      sim_.run_until_idle();
      expect(sim_.device_primary_ctx_reset(static_cast<int>(number)) == CuResult::success,
             "reset by somebody else");
    } else {
      const auto result = at.pool->streams().reset();
      expect(result.ok(), result ? "" : result.error().message.c_str());
    }
    enter(number);
    expect(at.pool->limits().memory_info().ok(), "memory_info after a reset");
    const StreamHandle home = new_stream();
    for (Loan loan : at.exchange.take_all()) {
      if (!at.pool->query(loan.ptr)) {
        expect(loan.bytes < page_, "a reset lost memory of the pool");
        live_.remove(loan.ptr);
        continue;
      }
      loan.home = home;
      loan.has_tenant = false;
      at.exchange.give(loan);
    }
    for (Lease lease : at.leases.take_all()) {
      lease.of.home = home;
      at.leases.give(lease);
    }
  }

  void finish() {
    for (Device& at : devices_) {
      expect(sim_.ctx_set_current(at.context) == CuResult::success, "set current");
      while (const auto loan = at.exchange.take())
        expect(at.pool->deallocate(loan->ptr, std::nullopt).ok(), "free");
      while (const auto lease = at.leases.take())
        at.pool->sharing().end_lease(lease->id, lease->kept);
      sim_.run_until_idle();
      expect(at.pool->streams().synchronize().ok(), "synchronize");
      expect(at.pool->limits().trim(0).ok(), "trim");
      const std::string broken = at.pool->reports().validate();
      expect(broken.empty(), broken.c_str());
      expect(at.pool->reports().statistics().live_allocations == 0, "allocations are left");
      expect(at.pool->reports().statistics().leased_bytes == 0, "leases are left");
      at.pool.reset();
    }
    const driver::sim::Census census = sim_.census();
    expect((census.chunks | census.mappings | census.reservations | census.pool_allocations |
            census.events) == 0,
           "the driver still holds something of the pool's");
    expect(misread_ == 0, "a kernel read what nobody had written");
    const std::string hazard = sim_.hazard_count() == 0 ? "" : sim_.hazards().front().describe();
    expect(hazard.empty(), hazard.c_str());
  }

  Watchdog watchdog_;
  driver::sim::SimDriver sim_;
  std::vector<Device> devices_;
  const Bytes page_;
  const Streams streams_;
  test::LiveRanges live_;
  std::atomic<std::uint64_t> misread_{0};
  std::atomic<bool> has_failed_{false};  // the workers stop
  Mutex mutex_;
  std::string failure_ VPMM_GUARDED_BY(mutex_);
};

}  // namespace vpmm::property
