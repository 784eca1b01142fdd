// SPDX-License-Identifier: Apache-2.0
// pool tests: address space, chunks, stamps and what is used of them set up by hand, for plans as
// pure data.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <variant>

#include "driver/sim/sim_driver.hpp"
#include "pool/strategies.hpp"
#include "support/page_size.hpp"
#include "support/sim_timelines.hpp"

namespace vpmm::pool {

using Strategy = Decision (*)(const View& view, const Ask& ask);

// A thousand pages of address space; every region is put there in so many words. Plans are printed
// in pages.
class PlanWorld {
 public:
  explicit PlanWorld(const settings::Config& config = {}) : tuning(tuning_of(config, kPage)) {
    cover({kStart, 1000 * kPage});
    time::enter_primary(sim, timelines);
    for (Lane* lane : {&own, &other, &third}) {
      EXPECT_EQ(sim.stream_create(driver::StreamFlags::non_blocking, lane->stream),
                driver::CuResult::success);
      lane->timeline = timelines.of(lane->stream).value();
    }
  }
  virtual ~PlanWorld() {
    EXPECT_EQ(index.validate(), "");
    EXPECT_EQ(chunks.validate(), "");
    timelines.destroy_events();
  }
  PlanWorld(const PlanWorld&) = delete;
  PlanWorld& operator=(const PlanWorld&) = delete;

  struct Lane {
    driver::StreamHandle stream{};
    time::Timeline* timeline = nullptr;
  };
  // The next number of a stream whose work goes on; `waitable` when an event stands for it.
  enum class Closed { no, yes };
  time::Stamp pending(Lane& lane, Closed closed = Closed::yes) {
    EXPECT_EQ(sim.launch({"work", 1'000'000'000, {}, {}}, lane.stream), driver::CuResult::success);
    const time::StampPart part = lane.timeline->next(kPage);
    if (closed == Closed::yes) {
      EXPECT_TRUE(timelines.close(*lane.timeline, lane.stream).ok());
    }
    return time::Stamp(part);
  }

  static DevicePtr page(Bytes number) { return kStart + number * kPage; }
  static AddressRange pages(Bytes first, Bytes count) { return {page(first), count * kPage}; }
  AddressRange grains(Bytes first, Bytes count) const {
    return {kStart + first * tuning.grain, count * tuning.grain};
  }
  void cover(AddressRange reservation) {
    index.add_reservation(reservation);
    chunks.cover(reservation);
  }
  // Maps chunks of so many pages each, one behind the other, from page `first` on; the whole is
  // free.
  region::Region* map_free(Bytes first, const Vector<Bytes>& sizes, const time::Stamp& stamp = {}) {
    Bytes count = 0;
    for (const Bytes size : sizes) {
      chunks.map(chunks.add(driver::ChunkHandle{next_chunk_++}, size * kPage), page(first + count));
      count += size;
    }
    return index.attach_free(index.detach(at(first), pages(first, count)), stamp);
  }
  region::Region* free(Bytes first, Bytes count, const time::Stamp& stamp = {}) {
    return map_free(first, Vector<Bytes>(count, 1), stamp);
  }
  // One allocation, wherever it begins and ends in the chunks that are mapped there.
  void used(AddressRange range) {
    index.allocate(around(range.begin), range, region::Owner{range.size, own.timeline->id, {}, 0});
    chunks.begin_use(range);
  }
  void freed(DevicePtr begin, const time::Stamp& stamp = {}) {
    region::Region* const region = index.allocated_around(begin);
    chunks.end_use(region->range);
    index.release(region, stamp);
  }
  void allocated(Bytes first, Bytes count) {
    free(first, count);
    used(pages(first, count));
  }
  // The chunk at page `first` came from page `old`, where work may still use it.
  void moved_from(Bytes old, Bytes first) {
    vm::Chunk* const chunk = chunks.inside({page(first), 1000 * kPage}).front().chunk;
    chunks.map(chunk, page(old));
    index.attach_zombie(index.detach(at(old), {page(old), chunk->size}), pending(other));
  }
  region::Region* at(Bytes number) { return around(page(number)); }
  region::Region* around(DevicePtr p) {
    const region::Region* found = nullptr;
    index.for_each([&](const region::Region& region) {
      if (region.range.contains(p)) found = &region;
    });
    return const_cast<region::Region*>(
        found);  // the index shows them const, but they are its own nodes
  }

  View view() const { return {index, chunks, timelines, tuning}; }
  // Without early growth, new chunks of a page, on stream `own`.
  Ask ask(Bytes pages) const {
    Ask ask;
    ask.size = pages * kPage;
    ask.alignment = tuning.grain;
    ask.own = own.timeline->id;
    ask.growth_room = 1000 * kPage;
    ask.chunk = kPage;
    return ask;
  }
  Ask with_chunks(Bytes pages, Bytes chunk) const {
    Ask large = ask(pages);
    large.chunk = chunk * kPage;
    return large;
  }
  Ask aligned(Bytes pages, Bytes alignment) const {
    Ask aligned = ask(pages);
    aligned.alignment = alignment * kPage;
    return aligned;
  }
  Ask waiting(Bytes pages) const {
    Ask waiting = ask(pages);
    waiting.takes_waiting = true;
    return waiting;
  }
  Plan plan(Strategy strategy, const Ask& ask) const {
    return std::get<Plan>(strategy(view(), ask));
  }
  // "11 = keep 3 move 8 of [-10] at 14": what the plan does and the page at which the allocation
  // begins.
  std::string text(Strategy strategy, const Ask& ask) const { return text(strategy(view(), ask)); }
  static std::string text(const Decision& decision) {
    if (const NoPlan* none = std::get_if<NoPlan>(&decision))
      return none->reason == NoPlan::Reason::memory
                 ? "no plan: " + std::to_string(none->missing / kPage) + " missing"
                 : "no plan: address space";
    const Plan& plan = std::get<Plan>(decision);
    return to_string(plan, kPage) + " at " + std::to_string((plan.allocation - kStart) / kPage);
  }

  static constexpr DevicePtr kStart{0x7000'0000'0000};
  driver::sim::SimDriver sim;
  time::Timelines timelines{sim, {}};
  Tuning tuning;
  region::RegionIndex index{tuning.grain};
  vm::ChunkTable chunks{kPage};
  Lane own;  // the caller's
  Lane other;
  Lane third;

 private:
  std::uint64_t next_chunk_ = 1;
};

}  // namespace vpmm::pool
