// SPDX-License-Identifier: Apache-2.0
// pool tests: what a pool has, on the simulator behind a driver that fails on demand, and a user of
// some of it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/function_ref.hpp"
#include "base/message.hpp"
#include "driver/faulting.hpp"
#include "driver/sim/sim_driver.hpp"
#include "fault/host_faults.hpp"
#include "observe/log.hpp"
#include "pool/address_space.hpp"
#include "pool/mover.hpp"
#include "pool/reclaimer.hpp"
#include "pool/strategies.hpp"
#include "support/hooked_driver.hpp"
#include "support/page_size.hpp"
#include "support/sim_timelines.hpp"

namespace vpmm::pool {

using Strategy = Decision (*)(const View& view, const Ask& ask);

// Pages of one reservation. A test maps them in so many words, has a plan made and carried out, and
// looks at what became of everything. Whatever happened, in the end all of it goes back to the
// driver.
class MoverWorld {
 public:
  explicit MoverWorld(const settings::Config& of = config())
      : memory(driver, driver::ChunkProperties{}, of, kPage, timelines) {
    observe::set_log_level(observe::LogLevel::quiet);
    time::enter_primary(sim, timelines);
    EXPECT_EQ(sim.stream_create(driver::StreamFlags::non_blocking, stream),
              driver::CuResult::success);
    own = timelines.of(stream).value();
    EXPECT_TRUE(add_reservation(memory, lock, kPage).ok());
  }
  virtual ~MoverWorld() {
    faults.clear_plan();
    finish_work();
    EXPECT_EQ(memory.validate(), "");
    EXPECT_EQ(broken_live(), "");
    EXPECT_EQ(sim.hazard_count(), 0u) << sim.hazards().front().describe();
    while (!lives.empty()) give_back(0, {});
    EXPECT_EQ(memory.chunks.trapped_bytes(), 0u);
    for (int round = 0; round < 2; ++round)
      EXPECT_TRUE(reclaimer.trim(lock, 0).ok());  // what a sweep left an orphan
    EXPECT_EQ(memory.held_bytes(), 0u) << memory.index.picture();
    EXPECT_EQ(memory.quarantine.bytes(), 0u);
    reclaimer.release_everything();
    timelines.destroy_events();
    EXPECT_EQ(sim.census().chunks, 0u);
    EXPECT_EQ(sim.census().mappings, 0u);
    EXPECT_EQ(sim.census().reservations, 0u);
    observe::set_log_level(observe::LogLevel::warning);
  }
  MoverWorld(const MoverWorld&) = delete;
  MoverWorld& operator=(const MoverWorld&) = delete;

  DevicePtr page(Bytes number) const { return memory.reservations.front().begin + number * kPage; }
  region::Region* at(Bytes number) {
    const region::Region* found = nullptr;
    memory.index.for_each([&](const region::Region& region) {
      if (region.range.contains(page(number))) found = &region;
    });
    return const_cast<region::Region*>(
        found);  // the index shows them const, but they are its own nodes
  }
  // New chunks of so many pages each, one behind the other; the whole is free.
  void map_free(Bytes first, const Vector<Bytes>& sizes) {
    Vector<Bytes> chunks;
    for (const Bytes size : sizes) chunks.push_back(size * kPage);
    EXPECT_TRUE(mover.fill(lock, at(first), range_of(first, sizes), std::move(chunks)).ok());
  }
  // The same while work of the own stream still uses them.
  void map_pending(Bytes first, const Vector<Bytes>& sizes) {
    map_free(first, sizes);
    const AddressRange range = range_of(first, sizes);
    memory.index.attach_free(memory.index.detach(at(first), range), pending(range));
  }
  // In use, with contents that must stay.
  void allocated(Bytes first, Bytes count) {
    map_free(first, {count});
    used(first, count);
  }
  // Likewise, of chunks that are mapped there, whole or not.
  void used(Bytes first, Bytes count) {
    const AddressRange range{page(first), count * kPage};
    memory.chunks.begin_use(range);
    use(memory.index.allocate(at(first), range, region::Owner{range.size, own->id, {}, 0}));
  }
  // One of `lives`.
  void give_back(std::size_t number, const time::Stamp& stamp) {
    const AddressRange range = lives[number].range;
    lives.erase(lives.begin() + static_cast<std::ptrdiff_t>(number));
    memory.chunks.end_use(range);
    memory.index.release(memory.index.allocated_around(range.begin), stamp);
  }
  void use(const region::Region* region) {
    lives.push_back({region->range, ++last_content});
    lives.back().for_each_page([&](DevicePtr at) {
      EXPECT_EQ(sim.memset_d8_async(at, lives.back().content, 16, stream),
                driver::CuResult::success);
    });
  }
  AddressRange range_of(Bytes first, const Vector<Bytes>& sizes) const {
    return {page(first), std::accumulate(sizes.begin(), sizes.end(), Bytes{0}) * kPage};
  }
  // The next number of the stream, behind work that still uses `range`.
  time::Stamp pending(AddressRange range) {
    const driver::sim::Kernel work{
        "work", 1'000'000, {{range, driver::sim::MemoryAccess::Kind::write}}, {}};
    EXPECT_EQ(sim.launch(work, stream), driver::CuResult::success);
    const time::StampPart part = own->next(kPage);
    EXPECT_TRUE(timelines.close(*own, stream).ok());
    return time::Stamp(part);
  }
  // New chunks of eight pages.
  Ask ask(Bytes pages) const {
    Ask ask;
    ask.size = pages * kPage;
    ask.alignment = memory.tuning.grain;
    ask.own = own->id;
    ask.growth_room = kGiB;
    ask.chunk = 8 * kPage;
    return ask;
  }
  Plan plan(const Ask& ask, Strategy strategy = stitch) const {
    return std::get<Plan>(strategy(memory.view(), ask));
  }
  Result<region::Region*> carry_out(const Plan& plan) {
    return mover.carry_out(lock, plan, region::Owner{plan.request, own->id, {}, 0});
  }
  // What still runs ends, and the pool learns it.
  void finish_work() {
    sim.run_until_idle();
    Vector<time::StampPart> done;
    EXPECT_TRUE(timelines.poll(timelines.count(), done).ok());
    for (const time::StampPart& part : done) memory.index.advance(part.timeline, part.sequence);
  }

  // --- what must hold; empty: it does ---
  std::string broken() {
    if (std::string broken = memory.validate(); !broken.empty()) return broken;
    if (memory.flights.coming_bytes() != 0) return "something is still to come";
    const driver::sim::Census census = sim.census();
    if (census.mappings != memory.chunks.mapping_count())
      return message_of("{} mappings, {} in the table", census.mappings,
                        memory.chunks.mapping_count());
    if (census.chunks != memory.chunks.chunk_count() ||
        census.physical_bytes != memory.chunks.chunk_bytes())
      return message_of("{} bytes in {} chunks, {} in {} in the table", census.physical_bytes,
                        census.chunks, memory.chunks.chunk_bytes(), memory.chunks.chunk_count());
    return broken_live();
  }
  std::string broken_live() {
    EXPECT_EQ(sim.stream_synchronize(stream), driver::CuResult::success);
    std::string broken;
    for (const Live& live : lives) {
      const region::Region* const owner = memory.index.allocated_around(live.range.begin);
      if (owner == nullptr || owner->range != live.range) return "a live allocation is lost";
      live.for_each_page([&](DevicePtr at) {
        std::uint8_t read = 0;
        if (sim.memcpy_device_to_host(&read, at, 1) != driver::CuResult::success)
          broken = "live memory is unreadable";
        if (read != live.content) broken = "the contents of a live allocation changed";
      });
    }
    return broken;
  }

  struct Live {
    AddressRange range;
    std::uint8_t content = 0;
    // The first bytes of each, and the last.
    void for_each_page(FunctionRef<void(DevicePtr at)> visit) const {
      for (DevicePtr at = range.begin; at < range.end(); at = at + kPage) visit(at);
      visit(range.end() - 16);
    }
  };
  static settings::Config config() {
    settings::Config config;
    config.va_size = kGiB;
    return config;
  }
  driver::sim::SimDriver sim;
  test::HookedDriver hooks{sim};
  driver::FaultingDriver faults{hooks};
  time::Timelines timelines{sim, {}};
  fault::ExemptDriver driver{faults};
  Memory memory;
  Mover mover{memory};
  Reclaimer reclaimer{memory};
  Mutex mutex;
  MutexLock lock{mutex};
  driver::StreamHandle stream{};
  time::Timeline* own = nullptr;
  std::vector<Live> lives;
  std::uint8_t last_content = 0;
};

}  // namespace vpmm::pool
