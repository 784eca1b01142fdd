// pool tests: address space, chunks and stamps set up by hand, for plans as pure data.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "driver/sim/sim_driver.hpp"
#include "pool/planner.hpp"
#include "support/sim_timelines.hpp"

namespace vpmm::pool {

constexpr Bytes kPage = 2 * kMiB;

// Pages of a reservation; every region is put there in so many words. Plans are printed in pages.
class PlanWorld : public testing::Test {
 protected:
  explicit PlanWorld(Config config = page_chunks()) : policy(make_chunk_policy(config, kPage)) {
    index.add_reservation({kStart, 1000 * kPage});
    time::enter_primary(sim, timelines);
    for (Lane* lane : {&own, &other, &third}) {
      EXPECT_EQ(sim.stream_create(driver::StreamFlags::non_blocking, lane->stream), driver::CuResult::success);
      lane->timeline = timelines.of(lane->stream).value();
    }
  }
  ~PlanWorld() override {
    EXPECT_EQ(index.validate(), "");
    EXPECT_EQ(chunks.validate(), "");
    timelines.destroy_events();
  }
  static Config page_chunks() {
    Config config;
    config.page_chunks = true;
    return config;
  }

  struct Lane {
    driver::StreamHandle stream{};
    time::Timeline* timeline = nullptr;
  };
  // The next number of a stream whose work goes on; `waitable` when an event stands for it.
  enum class Closed { no, yes };
  time::Stamp pending(Lane& lane, Closed closed = Closed::yes) {
    EXPECT_EQ(sim.launch({"work", 1'000'000'000, {}, {}}, lane.stream), driver::CuResult::success);
    const time::StampPart part = timelines.next(*lane.timeline, kPage);
    if (closed == Closed::yes) {
      EXPECT_TRUE(timelines.close(*lane.timeline, lane.stream).ok());
    }
    return time::Stamp(part);
  }

  static DevicePtr page(Bytes number) { return kStart + number * kPage; }
  // Maps chunks of so many pages each, one behind the other, from page `first` on; the whole is free.
  region::Region* map_free(Bytes first, const Vector<Bytes>& sizes, const time::Stamp& stamp = {}) {
    Bytes count = 0;
    for (const Bytes size : sizes) {
      chunks.map(chunks.add(driver::ChunkHandle{next_chunk_++}, size * kPage), page(first + count));
      count += size;
    }
    return index.attach_free(index.detach(at(first), {page(first), count * kPage}), stamp);
  }
  region::Region* free(Bytes first, Bytes count, const time::Stamp& stamp = {}) {
    return map_free(first, Vector<Bytes>(count, 1), stamp);
  }
  void allocated(Bytes first, Bytes count) {
    region::Region* region = free(first, count);
    index.allocate(region, {page(first), count * kPage}, region::Tenant{count * kPage, own.timeline->id, {}, 0});
  }
  region::Region* at(Bytes number) {
    const region::Region* found = nullptr;
    index.for_each([&](const region::Region& region) {
      if (region.range.contains(page(number))) found = &region;
    });
    return const_cast<region::Region*>(found);  // the index shows them const, but they are its own nodes
  }

  Need need(Bytes pages) const {
    Need need;
    need.size = pages * kPage;
    need.alignment = kPage;
    need.own = own.timeline->id;
    need.may_wait = true;
    need.mapped = chunks.chunk_bytes();
    need.peak_used = need.peak_asked = need.mapped;
    need.growth_room = 1000 * kPage;
    return need;
  }
  std::variant<Plan, NoPlan> decide(const Need& need, Effort effort = Effort::by_policy) const {
    return Planner(index, chunks, timelines, *policy, kPage).plan(need, effort);
  }
  // "11 = keep 3 move 8 of [-10] at 14": what the plan does and the page at which the request begins.
  std::string text(const Need& need, Effort effort = Effort::by_policy) const {
    const std::variant<Plan, NoPlan> decided = decide(need, effort);
    if (const NoPlan* none = std::get_if<NoPlan>(&decided))
      return none->reason == NoPlan::Reason::memory ? "no plan: " + std::to_string(none->missing / kPage) + " missing"
                                                    : "no plan: address space";
    const Plan& plan = std::get<Plan>(decided);
    return to_string(plan, kPage) + " at " + std::to_string((plan.allocation - kStart) / kPage);
  }

  static constexpr DevicePtr kStart{0x7000'0000'0000};
  driver::sim::SimDriver sim;
  time::Timelines timelines{sim, {}};
  region::RegionIndex index{kPage};
  vm::ChunkTable chunks;
  std::unique_ptr<ChunkPolicy> policy;
  Lane own;  // the caller's
  Lane other;
  Lane third;

 private:
  std::uint64_t next_chunk_ = 1;
};

}  // namespace vpmm::pool
