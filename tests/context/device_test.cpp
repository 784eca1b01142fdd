// SPDX-License-Identifier: Apache-2.0
// context: what a pool asks of its device, which memory is the pool's own, and figures of each of
// the servers of requests.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "driver/forwarding.hpp"
#include "support/pool_world_arenas.hpp"
#include "support/pool_world_words.hpp"
#include "support/told.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;
using driver::DeviceAttribute;

// Notes the properties that chunks are asked for, and may lack an attribute or refuse to tell it.
class AskedDevice final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  CuResult device_get_attribute(DeviceAttribute attribute, driver::DeviceOrdinal device,
                                int& value) override {
    const CuResult result = ForwardingDriver::device_get_attribute(attribute, device, value);
    if (attribute == refused) return CuResult::not_permitted;
    if (attribute == lacking) value = 0;
    return result;
  }
  CuResult mem_create(Bytes size, const driver::ChunkProperties& properties,
                      driver::ChunkHandle& chunk) override {
    created.push_back(properties);
    return ForwardingDriver::mem_create(size, properties, chunk);
  }

  std::optional<DeviceAttribute> lacking;
  std::optional<DeviceAttribute> refused;
  std::vector<driver::ChunkProperties> created;
};

// A page of a pool on the second device.
Result<driver::ChunkProperties> properties_of_chunks(driver::sim::SimDriver& sim,
                                                     std::optional<DeviceAttribute> lacking,
                                                     std::optional<DeviceAttribute> refused) {
  AskedDevice asked(sim);
  asked.lacking = lacking;
  asked.refused = refused;
  VPMM_TRY_ASSIGN(const auto pool, context::Context::create(asked, 1, page_world().config));
  VPMM_TRY(pool->allocate({kPage, 0, std::nullopt}));
  EXPECT_FALSE(asked.created.empty());
  return asked.created.empty() ? driver::ChunkProperties{} : asked.created.back();
}

TEST(DeviceTraits, decide_which_properties_chunks_have) {
  driver::sim::SimOptions options;
  options.device_count = 2;
  driver::sim::SimDriver sim(options);
  struct Case {
    std::optional<DeviceAttribute> lacking;
    bool descriptor = true, rdma = true;
  };
  for (const Case& each :
       {Case{}, Case{DeviceAttribute::posix_file_descriptor_supported, false, true},
        Case{DeviceAttribute::gpu_direct_rdma_with_vmm_supported, true, false}}) {
    const auto properties = properties_of_chunks(sim, each.lacking, std::nullopt);
    ASSERT_TRUE(properties.ok()) << message_of(properties);
    EXPECT_EQ(properties.value().device, 1);
    EXPECT_EQ(properties.value().posix_file_descriptor, each.descriptor);
    EXPECT_EQ(properties.value().gpu_direct_rdma_capable, each.rdma);
  }
}

TEST(DeviceTraits, know_the_kernels_of_wsl) {
  using context::is_kernel_of_wsl;
  EXPECT_TRUE(is_kernel_of_wsl("Linux version 5.15.90.1-microsoft-standard-WSL2 (gcc) #1 SMP"));
  EXPECT_TRUE(is_kernel_of_wsl("Linux version 4.4.0-19041-Microsoft (gcc version 5.4.0) #1237"));
  EXPECT_FALSE(is_kernel_of_wsl("Linux version 6.1.0-18-amd64 (gcc-12 (Debian 12.2.0-14)) #1 SMP"));
}

TEST(DeviceTraits, that_the_driver_does_not_tell_are_an_error) {
  driver::sim::SimOptions options;
  options.device_count = 2;
  driver::sim::SimDriver sim(options);
  for (const DeviceAttribute attribute :
       {DeviceAttribute::virtual_memory_management_supported,
        DeviceAttribute::memory_pools_supported, DeviceAttribute::posix_file_descriptor_supported,
        DeviceAttribute::gpu_direct_rdma_with_vmm_supported})
    expect_error(properties_of_chunks(sim, std::nullopt, attribute), ErrorCode::driver_failed,
                 {"device_get_attribute", "CUDA_ERROR_NOT_PERMITTED"});
  for (const Call call :
       {Call::init, Call::device_get_count, Call::mem_get_allocation_granularity}) {
    driver::FaultingDriver faults(sim);
    faults.set_plan({{call}, 1, CuResult::invalid_value});
    const auto refused = context::Context::create(faults, 0, {});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::driver_failed);
    EXPECT_NE(refused.error().message.find(driver::to_string(call)), std::string::npos)
        << refused.error().message;
  }
}

TEST(DeviceTraits, of_neither_kind_of_memory_are_refused_by_the_name_of_the_device) {
  driver::sim::SimOptions options;
  options.vmm_supported = options.memory_pools_supported = false;
  driver::sim::SimDriver sim(options);
  const auto refused = context::Context::create(sim, 0, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
  EXPECT_EQ(refused.error().message,
            "device 0 supports neither virtual memory management nor memory pools");
  for (const int device : {-1, 1}) {
    const auto absent = context::Context::create(sim, device, {});
    ASSERT_FALSE(absent.ok());
    EXPECT_EQ(absent.error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(absent.error().message,
              "device " + std::to_string(device) + " does not exist: there are 1");
  }
}

TEST(PoolOpening, is_told_in_the_log_with_its_settings) {
  WorldOptions options = adaptive_world();
  options.config.limits.capacity = 64 * kMiB;
  for (const observe::LogLevel level : {observe::LogLevel::info, observe::LogLevel::warning}) {
    options.config.log = level;
    const Told told;
    PoolWorld world(options);
    EXPECT_EQ(told.lines().find("pool opened, limit 64 MiB") != std::string::npos,
              level == observe::LogLevel::info)
        << told.lines();
    EXPECT_EQ(world.calls().count(Call::device_get_name), level == observe::LogLevel::info)
        << "the driver is asked for the line only";
  }
}

// Of each kind that a pool has, and of memory that begins before it.
TEST(OwnMemory, of_every_kind_is_not_the_users_to_give_to_an_arena) {
  WorldOptions with_driver_pool = adaptive_world();
  with_driver_pool.config.small = settings::SmallRequests::stream_ordered;
  WorldOptions guarded = adaptive_world();
  guarded.config.checks.guard_every = 1;
  for (const WorldOptions& options : {adaptive_world(), with_driver_pool, guarded}) {
    PoolWorld world(options);
    const StreamHandle stream = world.stream();
    const ArenaId external = make_arena(world, kExternal);
    for (const Bytes bytes : {256 * kKiB, 4 * kPage}) {
      const DevicePtr ptr = world.allocate(bytes, stream);
      for (const AddressRange range :
           {AddressRange{ptr, 4 * kKiB}, AddressRange{ptr + (bytes - 4 * kKiB), 8 * kKiB}})
        EXPECT_FALSE(world.pool().arenas().add(external, range).ok()) << bytes;
      world.deallocate(ptr, stream);
    }
    const AddressRange memory = user_memory(world, 4 * kPage);
    add_memory(world, external, memory);
    EXPECT_EQ(take_memory(world, external), memory);
    free_user_memory(world, memory);
    release(world, external);
  }
}

// Pages, a block, one block that its stream keeps, memory of an arena.
TEST(FiguresOfServers, are_added_up) {
  WorldOptions with_driver_pool = page_by_page_world();
  with_driver_pool.config.small = settings::SmallRequests::stream_ordered;
  WorldOptions guarded = page_by_page_world();
  guarded.config.checks.guard_every = 1;
  WorldOptions alone = page_by_page_world();
  alone.config.pool_enabled = false;
  for (const WorldOptions& options :
       {page_by_page_world(), with_driver_pool, guarded, alone, page_world()}) {
    PoolWorld world(options);
    const StreamHandle stream = world.stream();
    const DevicePtr pages = world.allocate(9 * kPage - 100, stream);
    const DevicePtr block = world.allocate(1000, stream);
    world.deallocate(world.allocate(1000, stream), stream);
    observe::Statistics now = world.statistics();
    EXPECT_EQ(now.live_bytes, 9 * kPage - 100 + 1000);
    EXPECT_GE(now.peak_live_bytes, 9 * kPage - 100 + 1000);
    EXPECT_GE(now.allocated_bytes, now.live_bytes);
    EXPECT_LE(now.allocated_bytes, now.live_bytes + 2 * kPage);
    EXPECT_EQ(now.live_allocations, 2u);
    EXPECT_EQ(now.allocations, 3u);
    EXPECT_EQ(now.deallocations, 1u);
    EXPECT_LE(now.hits, now.allocations);
    world.use(pages, kPage, stream, kLongNs);
    ASSERT_TRUE(world.pool().record_use(block, world.stream()).ok());
    world.deallocate(block, stream);
    world.deallocate(pages, stream);
    now = world.statistics();
    EXPECT_EQ(now.live_bytes, 0u);
    EXPECT_EQ(now.allocated_bytes, 0u);
    EXPECT_EQ(now.live_allocations, 0u);
    EXPECT_EQ(now.allocations, 3u);
    EXPECT_EQ(now.deallocations, 3u);
    if (options.config.checks.guard_every == 0) {
      const Bytes of_pages = options.config.pool_enabled ? 9 * kPage : 0;  // the driver's by then
      EXPECT_GE(now.pending_bytes, of_pages + 1000);
      EXPECT_LE(now.pending_bytes, of_pages + kPage);
    }
    world.wait();
    EXPECT_EQ(world.statistics().pending_bytes, 0u);
    EXPECT_EQ(world.pool().reports().validate(), "");
  }
}

TEST(Servers, of_small_requests_depend_on_settings_and_pages) {
  enum class By { cut, whole_pages, driver_pool };
  struct Case {
    const char* name = "";
    WorldOptions options;
    By by{};
  };
  std::vector<Case> cases{{"adaptive", adaptive_world(), By::cut},
                          {"stream_ordered", adaptive_world(), By::driver_pool},
                          {"isolated", adaptive_world(), By::whole_pages},
                          {"isolated and stream_ordered", adaptive_world(), By::driver_pool},
                          {"pages of 64 MiB", page_world(64 * kMiB), By::cut},
                          {"pages of 66 MiB", page_world(66 * kMiB), By::driver_pool},
                          {"without pools of the driver", page_world(66 * kMiB), By::whole_pages},
                          {"off", adaptive_world(), By::driver_pool}};
  cases[1].options.config.small = cases[3].options.config.small =
      settings::SmallRequests::stream_ordered;
  cases[2].options.config.ipc_isolate = cases[3].options.config.ipc_isolate = true;
  cases[6].options.sim.memory_pools_supported = false;
  cases[7].options.config.pool_enabled = false;
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    PoolWorld world(each.options);
    const DevicePtr ptr = world.allocate(1000, std::nullopt);
    const observe::Statistics now = world.statistics();
    EXPECT_EQ(now.small_bytes > 0, each.by == By::cut);
    EXPECT_EQ(now.stream_ordered_bytes > 0, each.by == By::driver_pool);
    EXPECT_EQ(now.mapped_bytes > now.stream_ordered_bytes, each.by != By::driver_pool);
    const Bytes usable = world.pool().query(ptr).value().usable;
    EXPECT_EQ(usable >= kPage, each.by == By::whole_pages) << usable;
    world.deallocate(ptr, std::nullopt);
  }
}

// The specification closes every free; to save memory, frees are closed before others ask.
TEST(Servers, of_one_stream_alone_record_events_by_their_policy) {
  WorldOptions saving = adaptive_world();
  saving.config.prefer = settings::Prefer::footprint;
  for (const auto& [options, is_closed] :
       {std::pair(adaptive_world(), false), std::pair(saving, true),
        std::pair(page_world(), true)}) {
    PoolWorld world(options);
    const StreamHandle stream = world.stream();
    for (int i = 0; i < 3; ++i) {
      const std::uint64_t before = world.statistics().events_recorded;
      const DevicePtr ptr = world.allocate(20 * kPage, stream);
      world.use(ptr, 20 * kPage, stream, kLongNs);
      world.deallocate(ptr, stream);
      EXPECT_EQ(world.statistics().events_recorded - before, is_closed ? 1u : 0u);
    }
  }
}

TEST(FiguresOfServers, have_a_peak_with_arenas_and_without_what_is_suspended) {
  constexpr std::uint32_t kTag = 7;
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const ArenaId arena = make_arena(world);
  const DevicePtr small = world.allocate(1000, stream);
  world.deallocate(allocate_in(world, arena, 4 * kPage, stream), stream);
  EXPECT_EQ(world.statistics().peak_live_bytes, 4 * kPage + 1000);
  ASSERT_TRUE(world.pool().suspension().make_suspendable(kTag, {}).ok());
  const DevicePtr asleep = world.pool().allocate({6 * kPage, 0, stream, {}, kTag}).value();
  ASSERT_TRUE(world.pool().suspension().suspend(kTag, {}).ok());
  world.pool().reports().reset_peaks();
  EXPECT_EQ(world.statistics().peak_live_bytes, 1000u);
  world.deallocate(world.allocate(3 * kPage, stream), stream);
  EXPECT_EQ(world.statistics().peak_live_bytes, 3 * kPage + 1000);
  ASSERT_TRUE(world.pool().suspension().resume(kTag, {}).ok());
  world.pool().reports().reset_peaks();
  EXPECT_EQ(world.statistics().peak_live_bytes, 6 * kPage + 1000);
  world.deallocate(asleep, stream);
  world.deallocate(small, stream);
}

TEST(FiguresOfServers, have_the_peak_of_a_moment_that_nobody_looked_at) {
  WorldOptions with_driver_pool = adaptive_world();
  with_driver_pool.config.small = settings::SmallRequests::stream_ordered;
  WorldOptions guarded = adaptive_world();
  guarded.config.checks.guard_every = 1;
  for (const WorldOptions& options : {adaptive_world(), with_driver_pool, guarded})
    for (const Bytes bytes : {Bytes{1000}, 9 * kPage}) {
      PoolWorld world(options);
      const StreamHandle stream = world.stream();
      world.deallocate(world.allocate(bytes, stream), stream);
      EXPECT_EQ(world.statistics().peak_live_bytes, bytes);
      EXPECT_EQ(world.statistics().live_bytes, 0u);
    }
}

TEST(FiguresOfServers, tell_of_guarded_memory) {
  WorldOptions options = adaptive_world();
  options.config.checks.guard_every = 1;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const observe::Statistics before = world.statistics();
  const DevicePtr ptr = world.allocate(3 * kPage - 100, stream);
  const DevicePtr small = world.allocate(1000, stream);
  observe::Statistics now = world.statistics();
  EXPECT_EQ(now.live_bytes, 3 * kPage + 900);
  EXPECT_EQ(now.guarded_bytes, 4 * kPage);
  EXPECT_EQ(now.mapped_bytes, 4 * kPage);
  EXPECT_EQ(now.guarded_allocations, 2u);
  EXPECT_EQ(now.unguarded_allocations, 0u);
  EXPECT_EQ(now.damaged_allocations, 0u);
  EXPECT_EQ(now.chunks, 2u);
  EXPECT_EQ(now.mappings, 2u);
  EXPECT_EQ(now.chunks_created - before.chunks_created, 2u);
  EXPECT_GT(now.reserved_bytes, before.reserved_bytes);
  world.deallocate(ptr, stream);
  world.deallocate(small, stream);
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  now = world.statistics();
  EXPECT_EQ(now.guarded_bytes, 0u);
  EXPECT_EQ(now.mapped_bytes, 0u);
  EXPECT_EQ(now.chunks, 0u);
  EXPECT_EQ(now.mappings, 0u);
  EXPECT_EQ(now.chunks_released - before.chunks_released, 2u);
  EXPECT_EQ(now.deallocations, 2u);
  EXPECT_EQ(now.guarded_allocations, 2u);
}

}  // namespace
}  // namespace vpmm::test
