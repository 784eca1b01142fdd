// SPDX-License-Identifier: Apache-2.0
// vm: the mapper undoes its own partial work, whichever call fails.
#include "vm/mapper.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "driver/faulting.hpp"
#include "driver/forwarding.hpp"
#include "driver/sim/sim_driver.hpp"

namespace vpmm::vm {
namespace {

using driver::Call;
using driver::CuResult;
using driver::FaultPlan;

constexpr Bytes kChunk = 2 * kMiB;
constexpr std::size_t kPieces = 3;

class MapperTest : public testing::Test {
 protected:
  MapperTest() {
    driver::ContextHandle context{};
    EXPECT_EQ(sim.init(), CuResult::success);
    EXPECT_EQ(sim.device_primary_ctx_retain(0, context), CuResult::success);
    EXPECT_EQ(sim.ctx_set_current(context), CuResult::success);
    span = mapper.reserve(kPieces * kChunk, kChunk).value();
    for (std::size_t i = 0; i < kPieces; ++i)
      placements.push_back({mapper.create(kChunk).value(), {span.begin + i * kChunk, kChunk}});
  }
  // Everything can be given back, so nothing was left mapped that the test does not know of.
  ~MapperTest() override {
    faults.clear_plan();
    for (const Placement& placement : placements)
      EXPECT_TRUE(mapper.release(placement.handle).ok());
    EXPECT_TRUE(mapper.free_reservation(span).ok());
    EXPECT_EQ(sim.census().chunks, 0u);
    EXPECT_EQ(sim.census().mappings, 0u);
    EXPECT_EQ(sim.census().reservations, 0u);
  }
  void fail(Call call, std::uint64_t nth, CuResult result,
            FaultPlan::Repeat repeat = FaultPlan::Repeat::once) {
    faults.set_plan({{call}, nth, result, repeat});
  }

  static driver::sim::SimOptions two_devices() {
    driver::sim::SimOptions options;
    options.device_count = 2;
    return options;
  }
  // By a fill that device 1 queues.
  bool peer_can_write(AddressRange range) {
    const std::uint64_t before = sim.hazard_count();
    driver::ContextHandle peer{};
    driver::ContextHandle own{};
    EXPECT_EQ(sim.ctx_get_current(own), CuResult::success);
    EXPECT_EQ(sim.device_primary_ctx_retain(1, peer), CuResult::success);
    EXPECT_EQ(sim.ctx_set_current(peer), CuResult::success);
    EXPECT_EQ(sim.memset_d8(range.begin, 7, range.size), CuResult::success);
    EXPECT_EQ(sim.ctx_synchronize(), CuResult::success);
    EXPECT_EQ(sim.ctx_set_current(own), CuResult::success);
    return sim.hazard_count() == before;
  }

  driver::sim::SimDriver sim{two_devices()};
  driver::FaultingDriver faults{sim};
  Mapper mapper{faults, driver::ChunkProperties{0, false, false}};
  AddressRange span;
  Vector<Placement> placements;
};

TEST_F(MapperTest, maps_a_run_so_that_the_device_can_use_it) {
  EXPECT_FALSE(mapper.map_run(span, placements).error.has_value());
  EXPECT_EQ(sim.memset_d8(span.begin, 7, span.size), CuResult::success);
  EXPECT_TRUE(mapper.unmap(span).ok()) << "adjacent mappings go in one call";
}

TEST_F(MapperTest, a_failed_map_unmaps_what_was_mapped_before_it) {
  for (std::uint64_t nth = 1; nth <= kPieces; ++nth) {
    fail(Call::mem_map, nth, CuResult::out_of_memory);
    const MapOutcome outcome = mapper.map_run(span, placements);
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_EQ(outcome.error->code, ErrorCode::out_of_memory);
    EXPECT_TRUE(outcome.still_mapped.empty());
    EXPECT_EQ(sim.census().mappings, 0u);
  }
}

TEST_F(MapperTest, failed_access_unmaps_everything) {
  fail(Call::mem_set_access, 1, CuResult::invalid_value);
  const MapOutcome outcome = mapper.map_run(span, placements);
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_TRUE(outcome.still_mapped.empty());
  EXPECT_EQ(sim.census().mappings, 0u);
}

TEST_F(MapperTest, what_even_the_undo_cannot_unmap_is_named) {
  faults.set_plan({{Call::mem_set_access, Call::mem_unmap},
                   1,
                   CuResult::invalid_value,
                   FaultPlan::Repeat::from_then_on});
  const MapOutcome outcome = mapper.map_run(span, placements);
  ASSERT_TRUE(outcome.error.has_value());
  ASSERT_EQ(outcome.still_mapped.size(), kPieces);
  EXPECT_EQ(sim.census().mappings, kPieces);
  faults.clear_plan();
  for (const Placement& stuck : outcome.still_mapped) EXPECT_TRUE(mapper.unmap(stuck.range).ok());
}

TEST_F(MapperTest, devices_of_the_list_get_access_to_what_is_mapped_from_then_on) {
  const MapOutcome before = mapper.map_run(span, placements);
  EXPECT_EQ(before.access_version, mapper.access_version());
  EXPECT_FALSE(peer_can_write(span));
  mapper.add_device(1);
  EXPECT_NE(before.access_version, mapper.access_version())
      << "what was mapped before has to catch up";
  const MapOutcome caught_up = mapper.catch_up(span, placements);
  EXPECT_FALSE(caught_up.error.has_value());
  EXPECT_EQ(caught_up.access_version, mapper.access_version());
  EXPECT_TRUE(peer_can_write(span));
  EXPECT_TRUE(mapper.unmap(span).ok());
  EXPECT_EQ(mapper.map_run(span, placements).access_version, mapper.access_version());
  EXPECT_TRUE(peer_can_write(span));
  EXPECT_TRUE(mapper.unmap(span).ok());
  mapper.remove_device(1);
  EXPECT_FALSE(mapper.map_run(span, placements).error.has_value());
  EXPECT_FALSE(peer_can_write(span));
  EXPECT_TRUE(mapper.set_access({span.begin, 2 * kChunk}, 1).ok());
  EXPECT_TRUE(peer_can_write({span.begin, 2 * kChunk}));
  EXPECT_FALSE(peer_can_write(span)) << "not the last of them";
  EXPECT_TRUE(mapper.unmap(span).ok());
}

TEST_F(MapperTest, a_failed_catch_up_unmaps_everything) {
  EXPECT_FALSE(mapper.map_run(span, placements).error.has_value());
  mapper.add_device(1);
  fail(Call::mem_set_access, 1, CuResult::out_of_memory);
  const MapOutcome outcome = mapper.catch_up(span, placements);
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_TRUE(outcome.still_mapped.empty());
  EXPECT_EQ(sim.census().mappings, 0u);
}

TEST_F(MapperTest, not_ready_is_tried_again) {
  for (const Call call : {Call::mem_map, Call::mem_set_access, Call::mem_unmap}) {
    fail(call, 1, CuResult::not_ready);
    EXPECT_FALSE(mapper.map_run(span, placements).error.has_value());
    EXPECT_TRUE(mapper.unmap(span).ok());
    EXPECT_EQ(faults.fired(), 1u) << driver::to_string(call);
  }
  fail(Call::mem_create, 1, CuResult::not_ready);
  const auto chunk = mapper.create(kChunk);
  ASSERT_TRUE(chunk.ok());
  fail(Call::mem_release, 1, CuResult::not_ready);
  EXPECT_TRUE(mapper.release(chunk.value()).ok());
  fail(Call::mem_address_reserve, 1, CuResult::not_ready);
  const auto reserved = mapper.reserve(kChunk, 4 * kChunk);
  ASSERT_TRUE(reserved.ok());
  EXPECT_EQ(reserved.value().size, kChunk);
  EXPECT_TRUE(is_aligned(reserved.value().begin, 4 * kChunk));
  fail(Call::mem_address_free, 1, CuResult::not_ready);
  EXPECT_TRUE(mapper.free_reservation(reserved.value()).ok());
}

TEST_F(MapperTest, nothing_but_not_ready_is_tried_again) {
  fail(Call::mem_map, 1, CuResult::out_of_memory);
  EXPECT_TRUE(mapper.map_run(span, placements).error.has_value());
  EXPECT_EQ(faults.counted(), 1u);
}

TEST_F(MapperTest, not_ready_for_ever_is_an_error) {
  fail(Call::mem_map, 1, CuResult::not_ready, FaultPlan::Repeat::from_then_on);
  EXPECT_TRUE(mapper.map_run(span, placements).error.has_value());
}

TEST_F(MapperTest, errors_name_the_call_and_the_result) {
  const auto message_of = [&](Call call, const auto& make) {
    fail(call, 1, CuResult::out_of_memory);
    const auto result = make();
    EXPECT_FALSE(result.ok()) << driver::to_string(call);
    return result.ok() ? std::string() : result.error().message;
  };
  const auto names = [](Call call) {
    return testing::AllOf(testing::HasSubstr(driver::to_string(call)),
                          testing::HasSubstr("CUDA_ERROR_OUT_OF_MEMORY"));
  };
  const driver::ChunkHandle chunk = placements.front().handle;
  EXPECT_FALSE(mapper.map_run(span, placements).error.has_value());
  EXPECT_THAT(message_of(Call::mem_create, [&] { return mapper.create(kChunk); }),
              names(Call::mem_create));
  EXPECT_THAT(message_of(Call::mem_release, [&] { return mapper.release(chunk); }),
              names(Call::mem_release));
  EXPECT_THAT(message_of(Call::mem_unmap, [&] { return mapper.unmap(span); }),
              names(Call::mem_unmap));
  EXPECT_THAT(message_of(Call::mem_set_access, [&] { return mapper.set_access(span, 1); }),
              names(Call::mem_set_access));
  EXPECT_THAT(message_of(Call::mem_address_reserve, [&] { return mapper.reserve(kChunk, kChunk); }),
              names(Call::mem_address_reserve));
  EXPECT_THAT(message_of(Call::mem_address_free, [&] { return mapper.free_reservation(span); }),
              names(Call::mem_address_free));
  EXPECT_TRUE(mapper.unmap(span).ok());
}

// --- Note [Optional chunk properties are given up one by one]

// Refuses chunks with properties that it claims, and remembers what it was asked for.
class Refusing : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  CuResult mem_create(Bytes size, const driver::ChunkProperties& properties,
                      driver::ChunkHandle& chunk) override {
    asked.push_back({properties.posix_file_descriptor, properties.gpu_direct_rdma_capable});
    const bool is_refused = (refuses_rdma && properties.gpu_direct_rdma_capable) ||
                            (refuses_descriptors && properties.posix_file_descriptor) ||
                            refuses_all;
    return is_refused ? refusal : ForwardingDriver::mem_create(size, properties, chunk);
  }
  struct Asked {
    bool descriptor = false;
    bool rdma = false;
    friend bool operator==(const Asked&, const Asked&) = default;
  };
  Vector<Asked> asked;
  bool refuses_rdma = false;
  bool refuses_descriptors = false;
  bool refuses_all = false;
  CuResult refusal = CuResult::not_permitted;
};

class OptionalProperties : public MapperTest {
 protected:
  using Asked = Refusing::Asked;
  void create() {
    const auto chunk = wishful.create(kChunk);
    ASSERT_TRUE(chunk.ok());
    EXPECT_TRUE(wishful.release(chunk.value()).ok());
  }
  Refusing refusing{sim};
  Mapper wishful{refusing, driver::ChunkProperties{0, true, true}};
};

TEST_F(OptionalProperties, stay_where_nothing_refuses_them) {
  create();
  create();
  EXPECT_EQ(refusing.asked, (Vector<Asked>{{true, true}, {true, true}}));
  EXPECT_TRUE(wishful.can_export());
  EXPECT_FALSE(mapper.can_export()) << "not wanted";
}

TEST_F(OptionalProperties, rdma_goes_first_and_file_descriptors_stay) {
  for (const CuResult refusal : {CuResult::not_permitted, CuResult::not_supported}) {
    Refusing picky(sim);
    picky.refuses_rdma = true;
    picky.refusal = refusal;
    Mapper one(picky, driver::ChunkProperties{0, true, true});
    for (int i = 0; i < 2; ++i) {
      const auto chunk = one.create(kChunk);
      ASSERT_TRUE(chunk.ok());
      EXPECT_TRUE(one.release(chunk.value()).ok());
    }
    EXPECT_EQ(picky.asked, (Vector<Asked>{{true, true}, {true, false}, {true, false}}))
        << "once refused, it is not asked for again";
    EXPECT_TRUE(one.can_export());
  }
}

TEST_F(OptionalProperties, both_go_if_both_are_refused) {
  refusing.refuses_rdma = refusing.refuses_descriptors = true;
  create();
  EXPECT_EQ(refusing.asked, (Vector<Asked>{{true, true}, {true, false}, {false, false}}));
  EXPECT_FALSE(wishful.can_export());
}

TEST_F(OptionalProperties, a_plain_chunk_that_is_refused_is_an_error) {
  refusing.refuses_all = true;
  EXPECT_FALSE(wishful.create(kChunk).ok());
  EXPECT_EQ(refusing.asked.size(), 3u);
}

TEST_F(OptionalProperties, stay_when_a_chunk_fails_for_another_reason) {
  refusing.refuses_all = true;
  refusing.refusal = CuResult::out_of_memory;
  EXPECT_FALSE(wishful.create(kChunk).ok());
  refusing.refuses_all = false;
  create();
  EXPECT_EQ(refusing.asked, (Vector<Asked>{{true, true}, {true, true}}));
  EXPECT_TRUE(wishful.can_export());
}

}  // namespace
}  // namespace vpmm::vm
